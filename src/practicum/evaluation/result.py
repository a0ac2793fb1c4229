"""The result of an evaluation: every attempt of one policy at a panel, its metrics, and the file that holds it."""

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

from practicum.data.run_folder import write_atomic
from practicum.errors import UserError
from practicum.evaluation.stats.intervals import (
    LEVEL,
    Interval,
    clustered_mean,
    jeffreys,
    pass_at,
    rate_interval,
)
from practicum.task import Task
from practicum.trajectory import Origin, Outcome, Trajectory
from practicum.utils.terminal import printable

if TYPE_CHECKING:
    from practicum.evaluation.panel import Panel

RESULT_FORMAT = "practicum result 1"

Measure = Callable[["AttemptResult"], float | None]
"""A metric of one attempt, or None where the attempt has none."""


GOAL_FIELD = "goal"
"""Field of a task that names the goal of which it is a variant: tasks of one goal are not independent."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """One attempt at one task. `cluster` is the hash of the task's content."""

    task: str
    cluster: str
    attempt: int
    outcome: Outcome
    reward: float
    turns: int
    tokens: int
    invalid_replies: int
    components: Mapping[str, float] = field(default_factory=dict)
    env_metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the environment gave with the last step."""
    seconds: float | None = None
    error: str | None = None
    goal: str | None = None
    """The goal that the task is a variant of, where it has one."""

    @property
    def success(self) -> bool:
        return self.outcome is Outcome.SUCCESS

    @property
    def unit(self) -> str:
        """The independent unit that the attempt belongs to: the goal, or else the task's content."""
        return self.cluster if self.goal is None else f"goal {self.goal}"


@dataclass(frozen=True)
class EvalResult:
    """A policy's attempts at a panel. An attempt without a score is counted as an error and enters no metric."""

    policy: str
    environment: str
    panel: str
    num_tasks: int
    """Tasks of the panel, scored or not."""
    attempts_per_task: int
    attempts: tuple[AttemptResult, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """The file that it was read from."""

    @cached_property
    def scored(self) -> tuple[AttemptResult, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.outcome.scored)

    @property
    def unscored(self) -> tuple[AttemptResult, ...]:
        return tuple(attempt for attempt in self.attempts if not attempt.outcome.scored)

    @cached_property
    def clusters(self) -> dict[str, str]:
        """The independent unit of each attempted task, by task id."""
        return {attempt.task: attempt.unit for attempt in self.attempts}

    @property
    def num_goals(self) -> int | None:
        """Independent units among the attempted tasks, where they are fewer than the tasks."""
        count = len(set(self.clusters.values()))
        return count if count < len(self.clusters) else None

    @property
    def unscored_share(self) -> float:
        """Share of the attempts that have no score; 0 where nothing was attempted."""
        return len(self.unscored) / len(self.attempts) if self.attempts else 0.0

    @property
    def success_rate(self) -> float:
        """Mean over the scored attempts (mean@k); NaN where none was scored."""
        return mean([float(attempt.success) for attempt in self.scored])

    def interval(self, level: float = LEVEL) -> Interval:
        return rate_interval([float(s.success) for s in self.scored], [s.unit for s in self.scored], level)

    def by_task(self, measure: Measure) -> dict[str, float]:
        """The mean of a metric over each task's scored attempts, for the tasks that have it."""
        values_by_task: dict[str, list[float]] = {}
        for attempt in self.scored:
            value = measure(attempt)
            if value is not None:
                values_by_task.setdefault(attempt.task, []).append(value)
        return {task: mean(values) for task, values in values_by_task.items()}

    def success_by_task(self, unscored_fail: bool = False) -> dict[str, float]:
        """The success rate of every task over its scored attempts; or over all, the unscored as failures."""
        if not unscored_fail:
            return self.by_task(lambda attempt: float(attempt.success))
        flags: dict[str, list[float]] = {}
        for attempt in self.attempts:
            flags.setdefault(attempt.task, []).append(float(attempt.success))
        return {task: mean(values) for task, values in flags.items()}

    def pass_at_interval(self, k: int, level: float = LEVEL) -> Interval:
        """The interval of the mean pass@k over tasks."""
        by_task = self.pass_at(k)
        return rate_interval(list(by_task.values()), [self.clusters[task] for task in by_task], level)

    def pass_at(self, k: int) -> dict[str, float]:
        """pass@k of every task with at least k scored attempts."""
        flags: dict[str, list[bool]] = {}
        for attempt in self.scored:
            flags.setdefault(attempt.task, []).append(attempt.success)
        return {task: pass_at(k, sum(each), len(each)) for task, each in flags.items() if len(each) >= k}

    def metrics(self, level: float = LEVEL) -> dict[str, float | int | None]:
        """The metrics of the result as a whole: those of HTDAG, HALO and Affine, with intervals."""
        scored, interval = self.scored, self.interval(level)
        rewards = [attempt.reward for attempt in scored]
        turns = [float(attempt.turns) for attempt in scored]
        seconds = [attempt.seconds for attempt in scored if attempt.seconds is not None]
        score = score_interval(rewards, [attempt.unit for attempt in scored], level)
        # Affine uses the sum of the scores as a count of successes, which only a scale from 0 to 1 allows.
        affine = jeffreys(math.fsum(rewards), len(rewards), level) if all(0 <= r <= 1 for r in rewards) else None
        metrics: dict[str, float | int | None] = {
            "total_tasks": self.num_tasks,
            "valid_tasks": len({attempt.task for attempt in scored}),
            "goals": len({attempt.unit for attempt in scored}),
            "episodes": len(self.attempts),
            "scored_episodes": len(scored),
            "errors": len(self.unscored),
            "successes": sum(attempt.success for attempt in scored),
            "success_rate": self.success_rate if scored else None,
            "success_low": interval.low,
            "success_high": interval.high,
            "level": level,
            "accuracy": mean([float(reward > 0.5) for reward in rewards]) if scored else None,
            "positive_rate": mean([float(reward > 0) for reward in rewards]) if scored else None,
            "mean_reward": mean(rewards) if scored else None,
            "reward_low": score.low if math.isfinite(score.low) else None,
            "reward_high": score.high if math.isfinite(score.high) else None,
            "jeffreys_low": None if affine is None else affine.low,
            "jeffreys_high": None if affine is None else affine.high,
            "std_reward": statistics.stdev(rewards) if len(rewards) > 1 else None,
            "median_reward": statistics.median(rewards) if scored else None,
            "mean_turns": mean(turns) if scored else None,
            "median_turns": statistics.median(turns) if scored else None,
            "mean_tokens": mean([float(attempt.tokens) for attempt in scored]) if scored else None,
            "invalid_reply_rate": ratio(sum(s.invalid_replies for s in scored), sum(s.turns for s in scored)),
            "truncated_rate": mean([float(s.outcome is Outcome.TRUNCATED) for s in scored]) if scored else None,
            "mean_seconds": mean(seconds) if seconds else None,
            "median_seconds": statistics.median(seconds) if seconds else None,
        }
        for k in pass_at_ks(self.attempts_per_task):
            rates, limits = list(self.pass_at(k).values()), self.pass_at_interval(k, level)
            metrics[f"pass@{k}"] = mean(rates) if rates else None
            metrics[f"pass@{k}_low"], metrics[f"pass@{k}_high"] = limits.low, limits.high
        for name in self.component_names:
            metrics[f"part/{name}"] = mean([attempt.components.get(name, 0.0) for attempt in scored])
        for name in self.env_metric_names:
            metrics[f"figure/{name}"] = mean([a.env_metrics[name] for a in scored if name in a.env_metrics])
        return metrics

    def summary(self, level: float = LEVEL) -> dict[str, float | int | None]:
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

    @property
    def component_names(self) -> list[str]:
        """Names of the reward's components in the scored attempts."""
        return sorted({name for attempt in self.scored for name in attempt.components})

    @property
    def env_metric_names(self) -> list[str]:
        """Names of the environment's metrics in the scored attempts."""
        return sorted({name for attempt in self.scored for name in attempt.env_metrics})

    def record(self, level: float = LEVEL) -> dict[str, Any]:
        """The content of the result file. `aggregated_metrics` and `individual_results` are HTDAG's names."""
        metrics = self.metrics(level)
        return {
            "format": RESULT_FORMAT,
            "policy": self.policy,
            "environment": self.environment,
            "panel": self.panel,
            "tasks": self.num_tasks,
            "attempts": self.attempts_per_task,
            "n": len(self.scored),
            "success_rate": metrics["success_rate"],
            "low": metrics["success_low"],
            "high": metrics["success_high"],
            "level": level,
            "aggregated_metrics": metrics,
            "settings": dict(self.settings),
            "individual_results": [_attempt_record(attempt) for attempt in self.attempts],
        }

    def write(self, path: Path, level: float = LEVEL) -> None:
        text = json.dumps(self.record(level), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomic(path, (text + "\n").encode("utf-8", "backslashreplace"))


def attempt_result(episode: Trajectory, seconds: float | None = None) -> AttemptResult:
    """The result of one episode."""
    tokens = sum(len(s.ids) for turn in episode.turns for s in turn.spans if s.origin is Origin.SAMPLED)
    return AttemptResult(
        task=episode.task.id,
        cluster=episode.task.hash,
        attempt=episode.attempt,
        outcome=episode.outcome,
        reward=episode.reward,
        turns=len(episode.turns),
        tokens=tokens,
        invalid_replies=episode.invalid_replies,
        components=dict(episode.components),
        env_metrics=episode.environment_figures,
        seconds=seconds,
        error=episode.error,
        goal=task_goal(episode.task),
    )


def task_goal(task: Task) -> str | None:
    """The goal that a task is a variant of: the text of its field `goal`; None without one."""
    goal = task.fields.get(GOAL_FIELD)
    return goal if isinstance(goal, str) and goal else None


def result_from_episodes(policy: str, panel: Panel, episodes: Sequence[Trajectory]) -> EvalResult:
    """The result of one policy's episodes on a panel."""
    counts = Counter(episode.task.id for episode in episodes)
    return EvalResult(
        policy=policy,
        environment=", ".join(sorted({task.environment for task in panel.tasks})),
        panel=panel.hash,
        num_tasks=len(panel.tasks),
        attempts_per_task=max(counts.values(), default=1),
        attempts=tuple(attempt_result(episode) for episode in episodes),
    )


def score_interval(rewards: Sequence[float], clusters: Sequence[str], level: float) -> Interval:
    """Jeffreys where all scores lie in [0, 1] (they may be fractions), a t interval over tasks on any other scale."""
    if all(0 <= reward <= 1 for reward in rewards):
        return rate_interval(rewards, clusters, level)
    return clustered_mean(rewards, clusters, level).interval


def pass_at_ks(attempts: int) -> list[int]:
    """The k for which pass@k is given: 1, 2, 4, 8 ... and `attempts`; none for a single attempt."""
    if attempts < 2:
        return []
    return sorted(
        {1 << exponent for exponent in range(attempts.bit_length()) if 1 << exponent <= attempts} | {attempts}
    )


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of no values."""
    return math.fsum(values) / len(values) if values else math.nan


def ratio(part: float, total: float) -> float | None:
    """part / total; None where the total is 0."""
    return part / total if total else None


def _attempt_record(attempt: AttemptResult) -> dict[str, Any]:
    return {
        "task_id": attempt.task,
        "task_hash": attempt.cluster,
        **({} if attempt.goal is None else {"goal": attempt.goal}),
        "attempt": attempt.attempt,
        "success": attempt.success,
        "outcome": attempt.outcome.value,
        "reward": attempt.reward,
        "turns": attempt.turns,
        "tokens": attempt.tokens,
        "invalid_replies": attempt.invalid_replies,
        "parts": dict(attempt.components),
        "figures": dict(attempt.env_metrics),
        "seconds": attempt.seconds,
        "error": attempt.error,
    }


def read_result(path: Path) -> EvalResult:
    """Read a result file; a missing or damaged one is a `UserError`."""
    try:
        content = json.loads(path.read_bytes(), parse_constant=_not_a_number)
    except FileNotFoundError:
        raise UserError(f"There is no result '{path}'; make it with `practicum eval --out {path}`.") from None
    except OSError as error:
        raise UserError(f"Cannot read the result '{path}': {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"Result '{path}' is not JSON ({error}); make it again with `practicum eval`.") from None
    if not isinstance(content, dict) or content.get("format") != RESULT_FORMAT:
        raise UserError(f"'{path}' is not a result of `practicum eval --out` (no 'format': '{RESULT_FORMAT}').")
    try:
        result = EvalResult(
            policy=_text(content["policy"]),
            environment=_text(content["environment"]),
            panel=_text(content["panel"]),
            num_tasks=int(content["tasks"]),
            attempts_per_task=int(content["attempts"]),
            attempts=tuple(_read_attempt(row) for row in content["individual_results"]),
            settings=dict(content["settings"]),
            source=str(path),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        message = printable(f"{type(error).__name__}: {error}"[:200])
        raise UserError(f"Result '{path}' is damaged ({message}); make it again.") from None
    seen = {(attempt.task, attempt.attempt) for attempt in result.attempts}
    if len(seen) != len(result.attempts):
        raise UserError(f"Result '{path}' is damaged (an attempt is there twice); make it again.")
    return result


def read_results(paths: Iterable[Path]) -> list[EvalResult]:
    """Read result files, and all result files below folders; a policy may have one for every environment."""
    results = []
    for path in paths:
        if path.is_dir():
            files = [file for file in sorted(path.rglob("*.json")) if _is_result(file)]
            if not files:
                raise UserError(f"There is no result below '{path}'; make some with `practicum eval --out`.")
            results += [read_result(file) for file in files]
        else:
            results.append(read_result(path))
    return results


def _is_result(path: Path) -> bool:
    """Whether a file of a folder is a result; other files beside them are skipped."""
    try:
        with path.open("rb") as file:
            return f'"{RESULT_FORMAT}"'.encode() in file.read(200)
    except OSError:
        return False


def _read_attempt(row: Mapping[str, Any]) -> AttemptResult:
    return AttemptResult(
        task=_text(row["task_id"]),
        cluster=_text(row["task_hash"]),
        attempt=int(row["attempt"]),
        outcome=Outcome(row["outcome"]),
        reward=_finite(row["reward"]),
        turns=int(row["turns"]),
        tokens=int(row["tokens"]),
        invalid_replies=int(row["invalid_replies"]),
        components={printable(str(name)): _finite(value) for name, value in row["parts"].items()},
        env_metrics={printable(str(name)): _finite(value) for name, value in row["figures"].items()},
        seconds=None if row["seconds"] is None else float(row["seconds"]),
        error=None if row["error"] is None else _text(row["error"]),
        goal=None if row.get("goal") is None else _text(row["goal"]),
    )


def _text(value: Any) -> str:
    """A string with control characters escaped: it is printed, and the file may come from anywhere."""
    if not isinstance(value, str):
        raise TypeError(f"expected a string, found {type(value).__name__}")
    return printable(value)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("a reward or figure is not finite")
    return number


def _not_a_number(name: str) -> float:
    raise ValueError(f"{name} is no number")
