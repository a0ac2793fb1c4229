"""The record of a pipeline: finished stages with their time and memory, and the lines it prints on the way."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from practicum.data.run_folder import write_atomic
from practicum.errors import UserError
from practicum.evaluation.result import EvalResult
from practicum.utils.memory import cpu_seconds, peak_resident_megabytes, release_free_memory, reset_peak_resident
from practicum.utils.terminal import duration

NAME = "stages.json"


@dataclass(frozen=True)
class StageUsage:
    """Time and memory of a stage, summed over its starts; a start that was killed is not in the sums."""

    starts: int = 0
    finished: bool = False
    seconds: float = 0.0
    processor_seconds: float = 0.0
    """CPU time of this process and of the children it waited for."""
    peak_mb: float = 0.0
    """Peak resident memory of this process."""
    gpu_peak_mb: float = 0.0
    """Peak of what tensors had on the GPU (allocated)."""
    gpu_reserved_mb: float = 0.0
    """Peak of what torch had taken from the GPU (reserved)."""
    gpu_start_mb: float = 0.0
    """What tensors had on the GPU when it began, after earlier stages' models were freed; the most over its starts."""


class PipelineLog:
    """The stages of one folder, as its stages.json has them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.usage: dict[str, StageUsage] = {}
        path = folder / NAME
        if path.is_file():
            try:
                self.usage = {name: StageUsage(**record) for name, record in json.loads(path.read_bytes()).items()}
            except (ValueError, TypeError, AttributeError):
                raise UserError(f"'{path}' cannot be read; remove it, and every stage is checked again.") from None

    def started(self, name: str) -> bool:
        return self.usage.get(name, StageUsage()).starts > 0

    def finished(self, name: str) -> bool:
        return self.usage.get(name, StageUsage()).finished

    def path(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """One start of a stage. It is finished if this is left without an exception; its usage is recorded anyway.

        Models and engines of earlier stages are freed first: they stay in reference cycles, also on a GPU.
        """
        release_free_memory()
        before = self.usage.get(name, StageUsage())
        self._record(name, replace(before, starts=before.starts + 1))
        reset_peak_resident()
        gpu_start_mb = 0.0
        if (cuda := available_cuda()) is not None:
            gpu_start_mb = cuda.memory_allocated() / 1e6
            cuda.reset_peak_memory_stats()
        start, cpu_start = time.monotonic(), cpu_seconds()
        finished = False
        try:
            yield
            finished = True
        finally:
            self._record(
                name,
                StageUsage(
                    before.starts + 1,
                    finished,
                    before.seconds + time.monotonic() - start,
                    before.processor_seconds + cpu_seconds() - cpu_start,
                    max(before.peak_mb, peak_resident_megabytes()),
                    max(before.gpu_peak_mb, gpu_peak_megabytes()),
                    max(before.gpu_reserved_mb, gpu_reserved_megabytes()),
                    max(before.gpu_start_mb, gpu_start_mb),
                ),
            )

    def append(self, name: str, text: str) -> None:
        """Add lines to the stage's own log file."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def summary(self, name: str) -> str:
        """Time, memory and, if there was more than one, the number of starts of a stage."""
        usage = self.usage[name]
        starts = f", {usage.starts} starts" if usage.starts > 1 else ""
        return f"{duration(usage.seconds)} min, {memory(usage)}{starts}"

    def rows(self) -> list[list[str]]:
        """A table row per stage, and the total."""
        rows = [
            [name, f"{duration(s.seconds)} min", f"{duration(s.processor_seconds)} min", memory(s), str(s.starts)]
            for name, s in self.usage.items()
        ]
        usages = self.usage.values()
        seconds, cpu = sum(s.seconds for s in usages), sum(s.processor_seconds for s in usages)
        peak = StageUsage(
            peak_mb=max(s.peak_mb for s in usages),
            gpu_peak_mb=max(s.gpu_peak_mb for s in usages),
            gpu_reserved_mb=max(s.gpu_reserved_mb for s in usages),
        )
        return [*rows, ["Total", f"{duration(seconds)} min", f"{duration(cpu)} min", f"{memory(peak)} peak", ""]]

    def record(self) -> dict[str, dict[str, Any]]:
        return {name: asdict(usage) for name, usage in self.usage.items()}

    def _record(self, name: str, usage: StageUsage) -> None:
        self.usage[name] = usage
        write_atomic(self.folder / NAME, (json.dumps(self.record(), indent=1) + "\n").encode())


class EpochSummary:
    """Affine's line for every epoch of SFT."""

    def __init__(self, num_epochs: int) -> None:
        self.num_epochs = num_epochs
        self._losses: list[float] = []
        self._last: dict[str, float] = {}

    def add(self, step: int, num_steps: int, values: Mapping[str, float]) -> str | None:
        """Take in one update; the line of its epoch where it is the last of it."""
        self._losses.append(values["actor/loss"])
        self._last.update(values)
        if (step * self.num_epochs) % num_steps:
            return None
        loss = sum(self._losses) / len(self._losses)
        self._losses = []
        text = f"Epoch {step * self.num_epochs // num_steps}: train_loss={loss:.3f}"
        if "eval/loss" in self._last:
            text += f", eval_loss={self._last['eval/loss']:.3f}, perplexity={self._last['eval/perplexity']:.3f}"
        return f"{text}, lr={self._last['actor/lr']:.2e}"


ROLLOUT_METRICS: Sequence[tuple[str, str]] = (
    ("reward", "reward/mean"), ("success", "success/mean"), ("policy_loss", "actor/pg_loss"),
    ("value_loss", "critic/vf_loss"), ("entropy", "actor/entropy"), ("kl", "actor/ppo_kl"),
)  # fmt: skip


def rollout_line(step: int, total: int, values: Mapping[str, float]) -> str:
    """Return the line of one RL step, in the style of the other stages."""
    metrics = ", ".join(f"{name}={values[key]:.3f}" for name, key in ROLLOUT_METRICS if key in values)
    return f"Rollout {step}/{total}: {metrics}"


def evaluation_line(result: EvalResult, level: float) -> str:
    """Affine's metrics of one environment."""
    metrics, interval = result.metrics(level), result.interval(level)
    return (
        f"accuracy={_number(metrics['accuracy'])}, mean={_number(metrics['mean_reward'])}, "
        f"std={_number(metrics['std_reward'])}, median={_number(metrics['median_reward'])}, "
        f"success={_number(metrics['success_rate'])} [{interval.low:.3f}, {interval.high:.3f}], "
        f"n={len(result.scored)}"
    )


def memory(usage: StageUsage) -> str:
    gpu = ""
    if usage.gpu_peak_mb:
        gpu = f", GPU {usage.gpu_peak_mb / 1000:.2f} GB allocated, {usage.gpu_reserved_mb / 1000:.2f} GB reserved"
    return f"{usage.peak_mb / 1000:.2f} GB{gpu}"


def gpu_reserved_megabytes() -> float:
    """The most that torch had taken from the GPU since the counters were reset; 0 without one."""
    cuda = available_cuda()
    return 0.0 if cuda is None else cuda.max_memory_reserved() / 1e6


def gpu_peak_megabytes() -> float:
    return 0.0 if (cuda := available_cuda()) is None else float(cuda.max_memory_allocated()) / 1e6


def available_cuda() -> Any:
    import torch

    return torch.cuda if torch.cuda.is_available() else None


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
