"""An examination: all that one policy did on a panel, one line an attempt, and the file that keeps it."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.data import store
from practicum.errors import UserError
from practicum.evaluation.stats.intervals import (
    COMPARISON_LEVEL,
    LEVEL,
    Interval,
    clustered_mean,
    fraction_interval,
    jeffreys,
    pass_at,
    rate_interval,
)
from practicum.trajectory import Origin, Outcome, Trajectory
from practicum.utils.tables import printable

if TYPE_CHECKING:
    from practicum.evaluation.panel import Panel

RESULT = "practicum result 1"

Measure = Callable[["AttemptResult"], float | None]
"""A number that an attempt has, or None where it has none."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """One attempt at one task. `cluster` names the task's content: two ids with one content are one question."""

    task: str
    cluster: str
    attempt: int
    outcome: Outcome
    reward: float
    turns: int
    tokens: int
    invalid: int
    components: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    error: str | None = None

    @property
    def success(self) -> bool:
        return self.outcome is Outcome.SUCCESS


@dataclass(frozen=True)
class EvalResult:
    """A policy's sittings on a panel. What could not be scored is counted and never scored."""

    policy: str
    environment: str
    panel: str
    size: int
    """Tasks of the panel."""
    attempts: int
    sittings: tuple[AttemptResult, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """The file it was read from."""

    @cached_property
    def scored(self) -> tuple[AttemptResult, ...]:
        return tuple(sitting for sitting in self.sittings if sitting.outcome.scored)

    @property
    def unscored(self) -> tuple[AttemptResult, ...]:
        return tuple(sitting for sitting in self.sittings if not sitting.outcome.scored)

    @cached_property
    def clusters(self) -> dict[str, str]:
        """The content of every task that was sat."""
        return {sitting.task: sitting.cluster for sitting in self.sittings}

    @property
    def success_rate(self) -> float:
        """Mean over attempts (mean@k); attempts that could not be scored take no part."""
        return mean([float(sitting.success) for sitting in self.scored])

    def interval(self, level: float = LEVEL) -> Interval:
        return rate_interval([float(s.success) for s in self.scored], [s.cluster for s in self.scored], level)

    def by_task(self, measure: Measure) -> dict[str, float]:
        """A number's mean over each task's scored attempts, for the tasks that have it."""
        found: dict[str, list[float]] = {}
        for sitting in self.scored:
            value = measure(sitting)
            if value is not None:
                found.setdefault(sitting.task, []).append(value)
        return {task: mean(values) for task, values in found.items()}

    def passes(self, k: int) -> dict[str, float]:
        """pass@k of every task with at least k scored attempts."""
        flags: dict[str, list[bool]] = {}
        for sitting in self.scored:
            flags.setdefault(sitting.task, []).append(sitting.success)
        return {task: pass_at(k, sum(found), len(found)) for task, found in flags.items() if len(found) >= k}

    def metrics(self, level: float = LEVEL) -> dict[str, float | int | None]:
        """Everything that is said of an examination as a whole (founding papers 000, 002 and 003)."""
        scored, interval = self.scored, self.interval(level)
        rewards = [sitting.reward for sitting in scored]
        turns = [float(sitting.turns) for sitting in scored]
        seconds = [sitting.seconds for sitting in scored if sitting.seconds is not None]
        score = score_interval(rewards, [sitting.cluster for sitting in scored], level)
        # Founding paper 003 takes the sum of the scores for a count, which only a scale from 0 to 1 allows.
        paper = jeffreys(math.fsum(rewards), len(rewards), level) if all(0 <= r <= 1 for r in rewards) else None
        found: dict[str, float | int | None] = {
            "total_tasks": self.size,
            "valid_tasks": len({sitting.task for sitting in scored}),
            "episodes": len(self.sittings),
            "scored_episodes": len(scored),
            "errors": len(self.unscored),
            "successes": sum(sitting.success for sitting in scored),
            "success_rate": self.success_rate if scored else None,
            "success_low": interval.low,
            "success_high": interval.high,
            "level": level,
            "accuracy": mean([float(reward > 0.5) for reward in rewards]) if scored else None,
            "positive_rate": mean([float(reward > 0) for reward in rewards]) if scored else None,
            "mean_reward": mean(rewards) if scored else None,
            "reward_low": score.low if math.isfinite(score.low) else None,
            "reward_high": score.high if math.isfinite(score.high) else None,
            "jeffreys_low": None if paper is None else paper.low,
            "jeffreys_high": None if paper is None else paper.high,
            "std_reward": statistics.stdev(rewards) if len(rewards) > 1 else None,
            "median_reward": statistics.median(rewards) if scored else None,
            "mean_turns": mean(turns) if scored else None,
            "median_turns": statistics.median(turns) if scored else None,
            "mean_tokens": mean([float(sitting.tokens) for sitting in scored]) if scored else None,
            "invalid_reply_rate": ratio(sum(s.invalid for s in scored), sum(s.turns for s in scored)),
            "truncated_rate": mean([float(s.outcome is Outcome.TRUNCATED) for s in scored]) if scored else None,
            "mean_seconds": mean(seconds) if seconds else None,
            "median_seconds": statistics.median(seconds) if seconds else None,
        }
        for k in attempts_shown(self.attempts):
            shares = list(self.passes(k).values())
            found[f"pass@{k}"] = mean(shares) if shares else None
        for name in self.names("parts"):
            found[f"part/{name}"] = mean([sitting.components.get(name, 0.0) for sitting in scored])
        for name in self.names("figures"):
            found[f"figure/{name}"] = mean([s.figures[name] for s in scored if name in s.figures])
        return found

    def summary(self, level: float = COMPARISON_LEVEL) -> dict[str, float | int | None]:
        """The success rate with its interval and a few means, for a table of policies."""
        metrics = self.metrics(level)
        return {
            "success_rate": metrics["success_rate"],
            "low": metrics["success_low"],
            "high": metrics["success_high"],
            "level": level,
            "n": len(self.scored),
            "errors": len(self.unscored),
            "mean_reward": metrics["mean_reward"],
            "mean_turns": metrics["mean_turns"],
            "invalid_replies": metrics["invalid_reply_rate"],
        }

    def names(self, kind: str) -> list[str]:
        """Names of the reward's parts, or of the world's own figures."""
        maps = (sitting.components if kind == "parts" else sitting.figures for sitting in self.scored)
        return sorted({name for values in maps for name in values})

    def record(self, level: float = LEVEL) -> dict[str, Any]:
        """The result file. `aggregated_metrics` and `individual_results` are founding paper 000's names."""
        metrics = self.metrics(level)
        return {
            "format": RESULT,
            "policy": self.policy,
            "environment": self.environment,
            "panel": self.panel,
            "tasks": self.size,
            "attempts": self.attempts,
            "n": len(self.scored),
            "success_rate": metrics["success_rate"],
            "low": metrics["success_low"],
            "high": metrics["success_high"],
            "level": level,
            "aggregated_metrics": metrics,
            "settings": dict(self.settings),
            "individual_results": [_row(sitting) for sitting in self.sittings],
        }

    def write(self, path: Path, level: float = LEVEL) -> None:
        text = json.dumps(self.record(level), indent=1, ensure_ascii=False, allow_nan=False)
        store.write_atomic(path, (text + "\n").encode("utf-8", "backslashreplace"))


def attempt_result(episode: Trajectory, seconds: float | None = None) -> AttemptResult:
    """What an examination keeps of an episode."""
    last = episode.turns[-1].info if episode.turns else {}
    figures = {
        name: float(value)
        for name, value in last.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
    tokens = sum(len(s.ids) for turn in episode.turns for s in turn.spans if s.origin is Origin.SAMPLED)
    return AttemptResult(
        task=episode.task.id,
        cluster=episode.task.hash,
        attempt=episode.attempt,
        outcome=episode.outcome,
        reward=episode.reward,
        turns=len(episode.turns),
        tokens=tokens,
        invalid=episode.invalid_replies,
        components=dict(episode.components),
        figures=figures,
        seconds=seconds,
        error=episode.error,
    )


def result_from_episodes(policy: str, panel: Panel, episodes: Sequence[Trajectory]) -> EvalResult:
    """The result of one policy's episodes on a panel."""
    counts = Counter(episode.task.id for episode in episodes)
    return EvalResult(
        policy=policy,
        environment=", ".join(sorted({task.environment for task in panel.tasks})),
        panel=panel.hash,
        size=len(panel.tasks),
        attempts=max(counts.values(), default=1),
        sittings=tuple(attempt_result(episode) for episode in episodes),
    )


def score_interval(rewards: Sequence[float], clusters: Sequence[str], level: float) -> Interval:
    """Jeffreys where all scores lie in [0, 1] (they may be fractions), a t interval over tasks on any other scale."""
    if all(0 <= reward <= 1 for reward in rewards):
        return fraction_interval(rewards, clusters, level)
    return clustered_mean(rewards, clusters, level).interval


def attempts_shown(attempts: int) -> list[int]:
    """The k of pass@k that are worth a line: 1, 2, 4, 8 ... and all."""
    if attempts < 2:
        return []
    return sorted({1 << place for place in range(attempts.bit_length()) if 1 << place <= attempts} | {attempts})


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _row(sitting: AttemptResult) -> dict[str, Any]:
    return {
        "task_id": sitting.task,
        "task_hash": sitting.cluster,
        "attempt": sitting.attempt,
        "success": sitting.success,
        "outcome": sitting.outcome.value,
        "reward": sitting.reward,
        "turns": sitting.turns,
        "tokens": sitting.tokens,
        "invalid_replies": sitting.invalid,
        "parts": dict(sitting.components),
        "figures": dict(sitting.figures),
        "seconds": sitting.seconds,
        "error": sitting.error,
    }


def read_result(path: Path) -> EvalResult:
    """A result file; what is wrong with it is one sentence."""
    try:
        whole = json.loads(path.read_bytes(), parse_constant=_not_a_number)
    except FileNotFoundError:
        raise UserError(f"There is no result '{path}'; make it with `practicum eval --out {path}`.") from None
    except OSError as error:
        raise UserError(f"Cannot read the result '{path}': {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"Result '{path}' is not JSON ({error}); make it again with `practicum eval`.") from None
    if not isinstance(whole, dict) or whole.get("format") != RESULT:
        raise UserError(f"'{path}' is not a result of `practicum eval --out` (no 'format': '{RESULT}').")
    try:
        examination = EvalResult(
            policy=_text(whole["policy"]),
            environment=_text(whole["environment"]),
            panel=_text(whole["panel"]),
            size=int(whole["tasks"]),
            attempts=int(whole["attempts"]),
            sittings=tuple(_sitting(row) for row in whole["individual_results"]),
            settings=dict(whole["settings"]),
            source=str(path),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = printable(f"{type(error).__name__}: {error}"[:200])
        raise UserError(f"Result '{path}' is damaged ({why}); make it again.") from None
    seen = {(sitting.task, sitting.attempt) for sitting in examination.sittings}
    if len(seen) != len(examination.sittings):
        raise UserError(f"Result '{path}' is damaged (an attempt is there twice); make it again.")
    return examination


def read_results(places: Iterable[Path]) -> list[EvalResult]:
    """Results of files, or of all files below folders; one policy may have one for every environment."""
    found = []
    for place in places:
        if place.is_dir():
            files = [path for path in sorted(place.rglob("*.json")) if _is_result(path)]
            if not files:
                raise UserError(f"There is no result below '{place}'; make some with `practicum eval --out`.")
            found += [read_result(path) for path in files]
        else:
            found.append(read_result(place))
    return found


def _is_result(path: Path) -> bool:
    """Whether a file of a folder says that it is a result: others lie beside them and are passed over."""
    try:
        with path.open("rb") as file:
            return f'"{RESULT}"'.encode() in file.read(200)
    except OSError:
        return False


def _sitting(row: Mapping[str, Any]) -> AttemptResult:
    return AttemptResult(
        task=_text(row["task_id"]),
        cluster=_text(row["task_hash"]),
        attempt=int(row["attempt"]),
        outcome=Outcome(row["outcome"]),
        reward=_finite(row["reward"]),
        turns=int(row["turns"]),
        tokens=int(row["tokens"]),
        invalid=int(row["invalid_replies"]),
        components={printable(str(name)): _finite(value) for name, value in row["parts"].items()},
        figures={printable(str(name)): _finite(value) for name, value in row["figures"].items()},
        seconds=None if row["seconds"] is None else float(row["seconds"]),
        error=None if row["error"] is None else _text(row["error"]),
    )


def _text(value: Any) -> str:
    """A text as it may be printed: tables, errors and pictures show it, and the file may be anybody's."""
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {type(value).__name__}")
    return printable(value)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a reward or figure is not finite")
    return number


def _not_a_number(name: str) -> float:
    raise ValueError(f"{name} is no number")
