"""What a pipeline says and remembers: finished stages with their time and memory, and the paper's lines of a log."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from practicum.data.store import write_atomic
from practicum.errors import UserError
from practicum.evaluation.result import EvalResult
from practicum.utils.memory import cpu_seconds, peak_resident_megabytes, reset_peak_resident
from practicum.utils.progress import duration
from practicum.utils.tables import printable

NAME = "stages.json"


@dataclass(frozen=True)
class Spent:
    """What a stage took, all its starts together; one that was killed is not in the sums."""

    starts: int = 0
    finished: bool = False
    seconds: float = 0.0
    processor_seconds: float = 0.0
    """Of this process and of those it waited for."""
    peak_mb: float = 0.0
    """The most memory this process held."""
    gpu_peak_mb: float = 0.0


class PipelineLog:
    """The stages of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spent: dict[str, Spent] = {}
        path = folder / NAME
        if path.is_file():
            try:
                self.spent = {name: Spent(**found) for name, found in json.loads(path.read_bytes()).items()}
            except (ValueError, TypeError, AttributeError):
                raise UserError(
                    f"'{path}' cannot be read; remove it, and finished stages are looked at again."
                ) from None

    def begun(self, name: str) -> bool:
        return self.spent.get(name, Spent()).starts > 0

    def finished(self, name: str) -> bool:
        return self.spent.get(name, Spent()).finished

    def path(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage is finished if it is left without an exception; what it took is kept either way."""
        before = self.spent.get(name, Spent())
        self._keep(name, replace(before, starts=before.starts + 1))
        reset_peak_resident()
        if (cuda := _cuda()) is not None:
            cuda.reset_peak_memory_stats()
        clock, processor = time.monotonic(), cpu_seconds()
        done = False
        try:
            yield
            done = True
        finally:
            self._keep(
                name,
                Spent(
                    before.starts + 1,
                    done,
                    before.seconds + time.monotonic() - clock,
                    before.processor_seconds + cpu_seconds() - processor,
                    max(before.peak_mb, peak_resident_megabytes()),
                    max(before.gpu_peak_mb, gpu_peak_megabytes()),
                ),
            )

    @contextlib.contextmanager
    def told(self, name: str) -> Iterator[Told]:
        """What a command prints goes into the stage's own log, so that the pipeline's stays short."""
        told = Told()
        try:
            with contextlib.redirect_stdout(told):
                yield told
        finally:
            path = self.path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(told.getvalue())

    def said(self, name: str) -> str:
        spent = self.spent[name]
        again = f", {spent.starts} starts" if spent.starts > 1 else ""
        return f"{duration(spent.seconds)} min, {memory(spent)}{again}"

    def rows(self) -> list[list[str]]:
        rows = [
            [name, f"{duration(s.seconds)} min", f"{duration(s.processor_seconds)} min", memory(s), str(s.starts)]
            for name, s in self.spent.items()
        ]
        every = self.spent.values()
        seconds, processor = sum(s.seconds for s in every), sum(s.processor_seconds for s in every)
        most = Spent(peak_mb=max(s.peak_mb for s in every), gpu_peak_mb=max(s.gpu_peak_mb for s in every))
        return [*rows, ["Total", f"{duration(seconds)} min", f"{duration(processor)} min", f"{memory(most)} peak", ""]]

    def record(self) -> dict[str, dict[str, Any]]:
        return {name: asdict(spent) for name, spent in self.spent.items()}

    def _keep(self, name: str, spent: Spent) -> None:
        self.spent[name] = spent
        write_atomic(self.folder / NAME, (json.dumps(self.record(), indent=1) + "\n").encode())


class Told(io.StringIO):
    """What a command printed."""

    def last_line(self) -> str:
        lines = self.getvalue().strip().splitlines()
        return printable(lines[-1]) if lines else ""


class Epochs:
    """Founding paper 003's line for every epoch of imitation."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.steps = 0
        """Updates in all; known once the stage is built."""
        self._losses: list[float] = []
        self._last: dict[str, float] = {}

    def hear(self, step: int, values: Mapping[str, float]) -> str | None:
        """One update; its epoch's line if that is over."""
        self._losses.append(values["actor/loss"])
        self._last.update(values)
        if (step * self.epochs) % self.steps:
            return None
        loss = sum(self._losses) / len(self._losses)
        self._losses = []
        text = f"Epoch {step * self.epochs // self.steps}: train_loss={loss:.3f}"
        if "eval/loss" in self._last:
            text += f", eval_loss={self._last['eval/loss']:.3f}, perplexity={self._last['eval/perplexity']:.3f}"
        return f"{text}, lr={self._last['actor/lr']:.2e}"


ROLLOUT: Sequence[tuple[str, str]] = (
    ("reward", "reward/mean"), ("success", "success/mean"), ("policy_loss", "actor/pg_loss"),
    ("value_loss", "critic/vf_loss"), ("entropy", "actor/entropy"), ("kl", "actor/ppo_kl"),
)  # fmt: skip


def rollout_line(step: int, total: int, values: Mapping[str, float]) -> str:
    """A step of practice in the same manner."""
    found = ", ".join(f"{name}={values[key]:.3f}" for name, key in ROLLOUT if key in values)
    return f"Rollout {step}/{total}: {found}"


def evaluation_line(examination: EvalResult, level: float) -> str:
    """The paper's metrics of one environment."""
    metrics, interval = examination.metrics(level), examination.interval(level)
    return (
        f"accuracy={_number(metrics['accuracy'])}, mean={_number(metrics['mean_reward'])}, "
        f"std={_number(metrics['std_reward'])}, median={_number(metrics['median_reward'])}, "
        f"success={_number(metrics['success_rate'])} [{interval.low:.3f}, {interval.high:.3f}], "
        f"n={len(examination.scored)}"
    )


def memory(spent: Spent) -> str:
    gpu = f", GPU {spent.gpu_peak_mb / 1000:.2f} GB" if spent.gpu_peak_mb else ""
    return f"{spent.peak_mb / 1000:.2f} GB{gpu}"


def gpu_peak_megabytes() -> float:
    return 0.0 if (cuda := _cuda()) is None else float(cuda.max_memory_allocated()) / 1e6


def _cuda() -> Any:
    import torch

    return torch.cuda if torch.cuda.is_available() else None


def print_lines(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
