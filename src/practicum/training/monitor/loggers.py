"""Where metrics go besides `metrics.jsonl`: the console, TensorBoard, Weights & Biases.

Which of them is the setting `trainer.logger`. A tracker's package is imported only where it is named,
and a logger that fails is dropped with one warning: watching a run must not be able to end it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from practicum.errors import UserError, did_you_mean

KNOWN = ("console", "jsonl", "tensorboard", "wandb")
SERVER_PATIENCE = 10.0  # seconds for the W&B server's first answer; without one the run is logged offline
UPLOAD_PATIENCE = 60.0  # seconds for what is still unsent when the run ends; the rest stays on disk for `wandb sync`

# Label, the metrics that may stand there (the first one present does), and how the number is written.
COLUMNS = (
    ("reward", ("reward/mean",), "<8.3f"),
    ("±", ("reward/std",), "<7.3f"),
    ("min", ("reward/min",), "<8.3f"),
    ("max", ("reward/max",), "<8.3f"),
    ("loss", ("actor/pg_loss",), "<9.3g"),
    ("value loss", ("critic/vf_loss",), "<9.3g"),
    ("KL", ("actor/kl", "actor/ppo_kl"), "<9.3g"),
    ("entropy", ("actor/entropy",), "<7.3f"),
    ("lr", ("actor/lr",), "<9.3g"),
)


class Logger(Protocol):
    """Takes the numbers of one step after another."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def make_loggers(
    names: Sequence[str], folder: Path, project: str, experiment: str, config: Mapping[str, Any], resumed: bool
) -> list[Logger]:
    """The loggers that `trainer.logger` names, each once. `jsonl` may be named; the run itself writes it, always."""
    for name in names:
        if name not in KNOWN:
            raise UserError(f"Unknown trainer.logger '{name}'.{did_you_mean(name, KNOWN)}")
    for name in {"tensorboard", "wandb"}.intersection(names):
        package(name)  # all are here before the first of them opens anything
    makers: dict[str, Callable[[], Logger]] = {
        "console": ConsoleLogger,
        "tensorboard": lambda: TensorBoardLogger(folder, config),
        "wandb": lambda: WandbLogger(folder, project, experiment, config, resumed),
    }
    return [Guarded(name, makers[name]) for name in dict.fromkeys(names) if name in makers]


class Guarded:
    """A logger that may break: its first failure prints one line and ends the logging, not the training."""

    def __init__(self, name: str, make: Callable[[], Logger]) -> None:
        self.name = name
        self._logger: Logger | None = None
        self._works = True
        try:
            self._logger = make()
        except UserError:  # a package that is not there is known before the first step
            raise
        except Exception as error:
            self._fail(error)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._logger is None or not self._works:
            return
        try:
            self._logger.write(step, values)
        except Exception as error:
            self._fail(error)

    def close(self) -> None:
        logger, self._logger = self._logger, None
        if logger is None:
            return
        try:
            logger.close()
        except Exception as error:
            if self._works:  # what broke while writing has been said; that it does not close either is no news
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._works = False
        reason = (str(error).splitlines() or [""])[0]
        warn(f"logger '{self.name}' failed ({type(error).__name__}: {reason}); the run goes on without it.")


class ConsoleLogger:
    """One line a step on standard output with the figures one watches."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        say(console_line(step, values), sys.stdout)

    def close(self) -> None:
        sys.stdout.flush()


def console_line(step: int, values: Mapping[str, float]) -> str:
    """`step 12  reward 0.5 ± ...`: metrics that are absent are left out, so a run's lines stand under each other."""
    parts = [f"step {step:>5}"]
    for label, names, form in COLUMNS:
        found = [values[name] for name in names if name in values]
        if found:
            parts.append(f"{label} {found[0]:{form}}")
    if "val/success/mean" in values:
        parts.append(f"val {values['val/success/mean']:.1%}")
    return "  ".join(parts).rstrip()


class TensorBoardLogger:
    """Scalars in event files under `folder/tensorboard`, on disk after every step."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        package("tensorboard")
        self._make_writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._folder = folder / "tensorboard"
        self._config = config
        self._writer: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            # Events that an interrupted run wrote beyond its last checkpoint are struck out: they will be made again.
            self._writer = self._make_writer(str(self._folder), purge_step=step)
            listing = json.dumps(self._config, indent=2, default=str)
            self._writer.add_text("config", "\n".join(f"    {line}" for line in listing.splitlines()), step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandbLogger:
    """A Weights & Biases run, silent; offline unless there is a key to log in with and a server that answers.

    A resumed run goes on under its own id. W&B takes steps in ascending order and leaves out those it
    has: nothing is lost by that, for a resumed run repeats its steps exactly.
    """

    def __init__(self, folder: Path, project: str, experiment: str, config: Mapping[str, Any], resumed: bool) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else W&B calls its makers, even offline
        self._wandb = package("wandb")
        self._options = {
            "project": re.sub(r"[/\\#?%:]", "-", project)[:128],  # W&B refuses a project with these
            "name": experiment,
            "id": run_id(folder, project, experiment, resumed),
            "dir": str(folder),
            "config": json.loads(json.dumps(config, default=str)),
            "resume": "allow",
            "reinit": "create_new",  # another run open in this process is left alone
        }
        try:
            self._run = self._start(tracking_mode(os.environ))
        except BaseException:
            self._leave(None)
            raise

    def _start(self, mode: str) -> Any:
        try:
            return self._open(mode)
        except self._wandb.Error as error:
            if mode != "online":
                raise
            reason = (str(error).splitlines() or [""])[0]
            warn(f"W&B cannot be reached ({reason}); this run is logged offline, `wandb sync` sends it later.")
            self._leave(None)  # W&B's process still holds the id
            return self._open("offline")

    def _open(self, mode: str) -> Any:
        self._wandb.setup(settings=self._wandb.Settings(silent=True))  # else logging in prints a line of its own
        settings = self._wandb.Settings(
            silent=True, console="off", init_timeout=SERVER_PATIENCE, finish_timeout=UPLOAD_PATIENCE
        )
        return self._wandb.init(mode=mode, settings=settings, **self._options)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step, commit=True)  # now, not when the next step begins

    def close(self) -> None:
        try:
            self._run.finish()
        finally:
            self._leave(self._run)

    def _leave(self, run: Any) -> None:
        """End W&B's background process, unless somebody else in this process has a run open."""
        if self._wandb.setup().most_recent_active_run in (None, run):
            self._wandb.teardown()


def tracking_mode(environment: Mapping[str, str]) -> str:
    """What W&B's variables ask for. Without a key in them nothing is sent and nobody is asked to log in."""
    wanted = environment.get("WANDB_MODE", "")
    if wanted == "disabled":
        return "disabled"
    return "online" if environment.get("WANDB_API_KEY") and wanted not in ("offline", "dryrun") else "offline"


def run_id(folder: Path, project: str, experiment: str, resumed: bool) -> str:
    """The id a run is known by at W&B, kept in its folder for when it is resumed.

    The time is in it: an experiment that is run anew must not be appended to the one before it.
    """
    path = folder / "wandb" / "run_id"
    if resumed and path.is_file():
        return path.read_text(encoding="utf-8").strip()
    parts = (project, experiment, str(folder.resolve()), str(time.time_ns()))
    made = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made + "\n", encoding="utf-8")
    return made


def package(name: str) -> Any:
    """An optional package, or an error that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"trainer.logger '{name}' needs a package that cannot be imported ({error}); "
            "pip install 'practicum[tracking]'."
        ) from error


def warn(text: str) -> None:
    say(f"Warning: {text}", sys.stderr)


def say(text: str, stream: TextIO) -> None:
    """One whole line, over a progress line where one is being drawn."""
    stream.write(f"\r\x1b[2K{text}\n" if stream.isatty() else f"{text}\n")
    stream.flush()
