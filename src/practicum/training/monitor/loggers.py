"""Where metrics go: the file `metrics.jsonl`, and the loggers (the console, TensorBoard, Weights & Biases).

`trainer.logger` names the loggers. The package of a tracker is imported only where it is named, and a logger that fails
is dropped with one warning: logging a run must not be able to end it.

Adding one: a class with `write` and `close` here, its name in LOGGER_NAMES and its entry in `make_loggers`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import netrc
import os
import re
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import psutil

from practicum.data.jsonl import parse_object, read_lines
from practicum.data.run_folder import write_atomic
from practicum.errors import UserError, did_you_mean
from practicum.trajectory import Trajectory
from practicum.utils.tables import percent, percent_interval
from practicum.utils.terminal import text_width

LOGGER_NAMES = ("console", "jsonl", "tensorboard", "wandb")
TRACKERS = {"tensorboard", "wandb"}
"""Loggers that need a package which carries their name."""
SERVER_TIMEOUT_SECONDS = 10.0  # for the W&B server's first answer; without one the run is logged offline
UPLOAD_TIMEOUT_SECONDS = 60.0  # for what is still unsent when the run ends; the rest stays on disk for `wandb sync`

# Label, the metrics it may show (the first one present), and the format of the number.
CONSOLE_COLUMNS = (
    ("reward", ("reward/mean",), "<8.3f"),
    ("±", ("reward/std",), "<7.3f"),
    ("min", ("reward/min",), "<8.3f"),
    ("max", ("reward/max",), "<8.3f"),
    ("loss", ("actor/loss", "actor/pg_loss"), "<9.3g"),
    ("value loss", ("critic/vf_loss",), "<9.3g"),
    ("KL", ("actor/kl", "actor/ppo_kl"), "<9.3g"),
    ("entropy", ("actor/entropy",), "<7.3f"),
    ("lr", ("actor/lr",), "<9.3g"),
)
LEAST_IMPORTANT_COLUMNS = ("min", "max", "lr", "value loss", "±", "loss")


class Logger(Protocol):
    """Writes the metrics of one step after another."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def make_loggers(
    names: Sequence[str], folder: Path, project: str, experiment: str, config: Mapping[str, Any], resumed: bool
) -> list[Logger]:
    """Return the loggers that `trainer.logger` names, each once.

    `jsonl` may be named; the run itself always writes it.
    """
    check_logger_names(names)
    for name in TRACKERS.intersection(names):
        import_package(name)  # before the first logger opens anything
    makers: dict[str, Callable[[], Logger]] = {
        "console": ConsoleLogger,
        "tensorboard": lambda: TensorBoardLogger(folder, config),
        "wandb": lambda: WandbLogger(folder, project, experiment, config, resumed),
    }
    return [FailSafeLogger(name, makers[name]) for name in dict.fromkeys(names) if name in makers]


def check_logger_names(names: Sequence[str]) -> None:
    """Refuse a name that is no logger."""
    for name in names:
        if name not in LOGGER_NAMES:
            raise UserError(f"Unknown trainer.logger '{name}'.{did_you_mean(name, LOGGER_NAMES)}")


class FailSafeLogger:
    """Wraps a logger that may fail: its first failure prints one warning and ends the logging, not the training."""

    def __init__(self, name: str, make: Callable[[], Logger]) -> None:
        self.name = name
        self._logger: Logger | None = None
        self._works = True
        try:
            self._logger = make()
        except UserError:  # a missing package is an error before the first step
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
            if self._works:  # a logger that failed while writing has been reported already
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._works = False
        reason = (str(error).splitlines() or [""])[0]
        warn(f"logger '{self.name}' failed ({type(error).__name__}: {reason}); the run goes on without it.")


class ConsoleLogger:
    """Prints one line per step with the main metrics on standard output."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        width = text_width(sys.stdout) if sys.stdout.isatty() else None
        print_line(console_line(step, values, width), sys.stdout)

    def close(self) -> None:
        sys.stdout.flush()


def console_line(step: int, values: Mapping[str, float], width: int | None = None) -> str:
    """Return `step 12  reward 0.5 ± ...`, in columns of fixed width; metrics that are absent are left out.

    With a `width`, columns are left out, the least important first, until the line with a validation would fit.
    """
    columns = {"step": f"step {step:>5}"}
    for label, names, form in CONSOLE_COLUMNS:
        present = [values[name] for name in names if name in values]
        if present:
            columns[label] = f"{label} {present[0]:{form}}"
    for label in LEAST_IMPORTANT_COLUMNS:
        if width is not None and len("  ".join(columns.values())) + len("  val 100.0 %") > width:
            columns.pop(label, None)
    if "val/success/mean" in values:
        columns["val"] = f"val {percent(values['val/success/mean'])}"
    return "  ".join(columns.values()).rstrip()


def validation_sentence(folder: Path) -> str:
    """The first, the best and the last validation of a run, each with its interval; "" for fewer than two."""
    rows = [row for row in map(parse_object, read_lines(folder / "metrics.jsonl")) if "val/success/mean" in row]
    if len(rows) < 2:
        return ""

    def text(row: Mapping[str, Any]) -> str:
        value, low, high = (row.get(f"val/success/{name}") for name in ("mean", "low", "high"))
        interval = "" if low is None or high is None else f" {percent_interval(low, high)}"
        return f"{percent(value)}{interval} at step {row['step']}"

    best = max(rows, key=lambda row: float(row["val/success/mean"]))
    line = f"validation: {text(rows[0])}, best {text(best)}, last {text(rows[-1])}"
    return f"{line}; the same tasks each time, and the best of several is flattering"


class TensorBoardLogger:
    """Writes scalars into event files under `folder/tensorboard`, flushed after every step."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import_package("tensorboard")
        self._make_writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._folder = folder / "tensorboard"
        self._config = config
        self._writer: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            # Events that an interrupted run wrote beyond its last checkpoint are purged: they will be written again.
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
    """Logs to a Weights & Biases run, silently; offline unless there is a key to log in with and a server that answers.

    A resumed run continues under its own id. W&B takes steps in ascending order and ignores those it
    has: nothing is lost by that, since a resumed run repeats its steps exactly.
    """

    def __init__(self, folder: Path, project: str, experiment: str, config: Mapping[str, Any], resumed: bool) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else W&B reports to its authors, even offline
        self._wandb = import_package("wandb")
        self._options = {
            "project": re.sub(r"[/\\#?%:]", "-", project)[:128],  # W&B refuses a project with these
            "name": experiment,
            "id": wandb_run_id(folder, project, experiment, resumed),
            "dir": str(folder),
            "config": json.loads(json.dumps(config, default=str)),
            "resume": "allow",
            "reinit": "create_new",  # leaves another run open in this process alone
        }
        mode = wandb_mode(os.environ)
        if mode == "offline" and os.environ.get("WANDB_MODE") not in ("offline", "dryrun"):
            warn(
                "W&B has no key (WANDB_API_KEY, or `wandb login`): this run is logged offline; "
                f"`wandb sync {folder / 'wandb'}/offline-run-*` sends it later."
            )
        try:
            self._run = self._start(mode)
        except BaseException:
            self._teardown(None)
            raise

    def _start(self, mode: str) -> Any:
        try:
            return self._open(mode)
        except self._wandb.Error as error:
            if mode != "online":
                raise
            reason = (str(error).splitlines() or [""])[0]
            warn(f"W&B cannot be reached ({reason}); this run is logged offline, `wandb sync` sends it later.")
            self._teardown(None)  # W&B's process still holds the id
            return self._open("offline")

    def _open(self, mode: str) -> Any:
        self._wandb.setup(settings=self._wandb.Settings(silent=True))  # else logging in prints a line of its own
        settings = self._wandb.Settings(
            silent=True, console="off", init_timeout=SERVER_TIMEOUT_SECONDS, finish_timeout=UPLOAD_TIMEOUT_SECONDS
        )
        return self._wandb.init(mode=mode, settings=settings, **self._options)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step, commit=True)  # now, not when the next step begins

    def close(self) -> None:
        try:
            self._run.finish()
        finally:
            self._teardown(self._run)

    def _teardown(self, run: Any) -> None:
        """End W&B's background process, unless another run is open in this process."""
        if self._wandb.setup().most_recent_active_run in (None, run):
            self._wandb.teardown()


def wandb_mode(environment: Mapping[str, str]) -> str:
    """Return the mode that W&B's variables ask for; without a key nothing is sent and nobody is asked to log in."""
    mode = environment.get("WANDB_MODE", "")
    if mode == "disabled":
        return "disabled"
    return "online" if has_wandb_key(environment) and mode not in ("offline", "dryrun") else "offline"


def has_wandb_key(environment: Mapping[str, str]) -> bool:
    """Whether there is a key, in WANDB_API_KEY or where `wandb login` writes it (the file .netrc)."""
    if environment.get("WANDB_API_KEY"):
        return True
    path = environment.get("NETRC") or (f"{environment['HOME']}/.netrc" if "HOME" in environment else "")
    host = urllib.parse.urlsplit(environment.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        return bool(path) and netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def wandb_run_id(folder: Path, project: str, experiment: str, resumed: bool) -> str:
    """Return the W&B id of a run, kept in its folder for when it is resumed.

    It depends on the time: an experiment that is run again must not be appended to the one before it.
    """
    path = folder / "wandb" / "run_id"
    if resumed and path.is_file():
        return path.read_text(encoding="utf-8").strip()
    parts = (project, experiment, str(folder.resolve()), str(time.time_ns()))
    new_id = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(new_id + "\n", encoding="utf-8")
    return new_id


def import_package(name: str) -> Any:
    """Return an optional package, or raise an error that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"trainer.logger '{name}' needs a package that cannot be imported ({error}); "
            "pip install 'practicum[tracking]'."
        ) from error


def warn(text: str) -> None:
    """Print a warning on standard error."""
    print_line(f"Warning: {text}", sys.stderr)


def print_line(text: str, stream: TextIO) -> None:
    """Print one line, over a progress line where one is being drawn."""
    stream.write(f"\r\x1b[2K{text}\n" if stream.isatty() else f"{text}\n")
    stream.flush()


def memory_metrics() -> dict[str, float]:
    """Memory in MB: of this process, and on the GPU in use what tensors have (`allocated`), what torch has taken from
    the GPU (`reserved`), and the most that tensors had (`peak`) so far."""
    import torch  # here, because readers of runs import this module

    metrics = {"memory/rss_mb": psutil.Process().memory_info().rss / 1e6}
    if torch.cuda.is_available():
        metrics["memory/gpu_allocated_mb"] = torch.cuda.memory_allocated() / 1e6
        metrics["memory/gpu_reserved_mb"] = torch.cuda.memory_reserved() / 1e6
        metrics["memory/gpu_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return metrics


class MetricsFile:
    """Appends one line per step, written at once and flushed.

    A new file replaces an old one; with `keep_to`, the lines of the old one up to that step are kept as they are (a
    line that a crash cut short is dropped).
    """

    def __init__(self, path: Path, keep_to: int | None = None) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if keep_to is not None and path.exists():
                write_atomic(path, b"".join(_lines_up_to(path, keep_to)))
            self._file = path.open("w" if keep_to is None else "a", encoding="utf-8")
        except OSError as error:
            raise UserError(f"Cannot write '{path}': {error.strerror}; choose another --out.") from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the metrics of a step; raises FloatingPointError if one is not finite."""
        not_finite = [name for name, value in values.items() if not math.isfinite(value)]
        if not_finite:
            raise FloatingPointError(f"step {step}: {', '.join(not_finite)} is not a finite number")
        try:
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
        except OSError as error:
            raise UserError(f"Cannot write '{self.path}': {error.strerror}; free some space.") from error

    def close(self) -> None:
        self._file.close()


def _lines_up_to(path: Path, step: int) -> Iterator[bytes]:
    for line in read_lines(path):
        try:
            line_step = parse_object(line)["step"]
        except (ValueError, KeyError, TypeError):
            continue
        if line.endswith(b"\n") and line_step <= step:
            yield line


def summary_stats(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return mean, std, min and max of a list, as `name/stat`; no metrics of an empty one."""
    if not values:
        return {}
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))
    return {f"{name}/mean": mean, f"{name}/std": deviation, f"{name}/min": min(values), f"{name}/max": max(values)}


def tool_time_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Mean and longest seconds of a call, for each tool that episodes were offered and called."""
    seconds: dict[str, list[float]] = {}
    for episode in episodes:
        offered = {str(tool.get("function", tool).get("name")) for tool in episode.provenance.get("tools", ())}
        for name in offered & episode.tool_seconds.keys():
            seconds.setdefault(name, []).extend(episode.tool_seconds[name])
    means = {f"timing/tool/{name}/mean": sum(seconds[name]) / len(seconds[name]) for name in sorted(seconds)}
    return means | {f"timing/tool/{name}/max": max(seconds[name]) for name in sorted(seconds)}
