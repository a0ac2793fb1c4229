"""A panel: a frozen list of tasks and seeds, named by its content. Scores on one panel can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from practicum.errors import UserError
from practicum.evaluation.statistics import Interval, jeffreys, mcnemar, paired_difference
from practicum.rollout import Attempt, attempts
from practicum.task import Task, content_hash
from practicum.trajectory import Outcome, Trajectory


@dataclass(frozen=True)
class Panel:
    """Tasks and the seed that all attempts at them derive from."""

    tasks: tuple[Task, ...]
    seed: int

    def __post_init__(self) -> None:
        if len({task.id for task in self.tasks}) != len(self.tasks):
            raise UserError("A panel holds every task once; two of these have the same id.")

    @cached_property
    def hash(self) -> str:
        return content_hash([[[task.id, task.hash] for task in self.tasks], self.seed])

    def attempts(self) -> list[Attempt]:
        return attempts(self.tasks, 1, self.seed, "panel/")


@dataclass(frozen=True)
class Result:
    """One policy's scores on a panel. Tasks whose episode could not be scored are counted, not scored."""

    policy: str
    panel: str
    rewards: dict[str, float]
    successes: dict[str, bool]
    errors: dict[str, str]
    mean_turns: float
    invalid_replies: float

    @property
    def count(self) -> int:
        return len(self.successes)

    @property
    def success_rate(self) -> float:
        return sum(self.successes.values()) / self.count if self.count else 0.0

    def interval(self, level: float = 0.95) -> Interval:
        return jeffreys(sum(self.successes.values()), self.count, level)

    def record(self) -> dict[str, Any]:
        interval = self.interval()
        return {
            "success_rate": self.success_rate,
            "low": interval.low,
            "high": interval.high,
            "level": interval.level,
            "n": self.count,
            "errors": len(self.errors),
            "mean_reward": sum(self.rewards.values()) / self.count if self.count else 0.0,
            "mean_turns": self.mean_turns,
            "invalid_replies": self.invalid_replies,
        }


@dataclass(frozen=True)
class Comparison:
    """Two policies on the same tasks."""

    difference: float
    interval: Interval
    p_value: float
    count: int

    @property
    def verdict(self) -> str:
        if self.p_value >= 0.05:
            return "no difference shown"
        return "better" if self.difference > 0 else "worse"


def score(policy: str, panel: Panel, episodes: Sequence[Trajectory]) -> Result:
    """Scores of one policy's episodes on a panel."""
    scored = [episode for episode in episodes if episode.scored]
    turns = sum(len(e.turns) for e in scored)
    return Result(
        policy=policy,
        panel=panel.hash,
        rewards={e.task.id: e.reward for e in scored},
        successes={e.task.id: e.outcome is Outcome.SUCCESS for e in scored},
        errors={e.task.id: f"{e.outcome}: {e.error}" for e in episodes if not e.scored},
        mean_turns=turns / len(scored) if scored else 0.0,
        invalid_replies=sum(e.invalid_replies for e in scored) / turns if turns else 0.0,
    )


def compare(first: Result, second: Result) -> Comparison:
    """A paired test over the tasks both could be scored on."""
    if first.panel != second.panel:
        raise UserError(
            f"'{first.policy}' was scored on panel {first.panel} and '{second.policy}' on {second.panel}; "
            "only results on one panel can be compared."
        )
    common = [task for task in first.successes if task in second.successes]
    a, b = [first.successes[t] for t in common], [second.successes[t] for t in common]
    difference, interval = paired_difference([float(x) for x in a], [float(x) for x in b])
    return Comparison(difference, interval, mcnemar(a, b), len(common))
