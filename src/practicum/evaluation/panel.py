"""A panel: a frozen list of tasks and seeds, named by its content. Scores on one panel can be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from practicum.data import store
from practicum.errors import UserError
from practicum.evaluation.stats.intervals import Interval, jeffreys, paired_difference
from practicum.evaluation.stats.paired import mcnemar
from practicum.rollout import Attempt, attempts
from practicum.task import Task, content_hash, plain
from practicum.trajectory import Outcome, Trajectory

PANEL = "practicum panel 1"


@dataclass(frozen=True)
class Panel:
    """Tasks, the seed that all attempts at them derive from, and the rules they are played under.

    Rules are what changes a score without changing a task: turns, tools, the reward. How many attempts a policy gets is
    not part of a panel: a mean over four is compared with a mean over one.
    """

    tasks: tuple[Task, ...]
    seed: int
    rules: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({task.id for task in self.tasks}) != len(self.tasks):
            raise UserError("A panel holds every task once; two of these have the same id.")

    @cached_property
    def hash(self) -> str:
        listed = [[task.id, task.hash] for task in self.tasks]
        return content_hash([listed, self.seed, *([dict(self.rules)] if self.rules else [])])

    def attempts(self, each: int = 1) -> list[Attempt]:
        """Attempt k at a task has the same seeds whoever is examined and however many follow."""
        return attempts(self.tasks, each, self.seed, "panel/")

    def write(self, path: Path) -> None:
        """The panel as a file, which is also a task registry."""
        tasks = [
            {"id": task.id, "environment": task.environment, "split": task.split, "hash": task.hash,
             "fields": dict(task.fields)}
            for task in self.tasks
        ]  # fmt: skip
        whole = {"format": PANEL, "panel": self.hash, "seed": self.seed, "rules": dict(self.rules), "tasks": tasks}
        store.write_atomic(path, (json.dumps(whole, indent=1, ensure_ascii=False, default=plain) + "\n").encode())


def read_panel(path: Path) -> Panel:
    """A panel from its file, if that is still what it was when it was written."""
    try:
        whole = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"Cannot read the panel '{path}': {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"Panel '{path}' is not JSON: {error}.") from None
    try:
        if whole["format"] != PANEL:
            raise ValueError(f"its format is '{whole['format']}'")
        tasks = tuple(Task(t["id"], t["environment"], t["split"], t["fields"]) for t in whole["tasks"])
        panel = Panel(tasks, whole["seed"], whole["rules"])
        said, made = whole["panel"], panel.hash
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{path}' is not a panel ({type(error).__name__}: {error}); `practicum eval --out` writes one."
        ) from None
    if said != made:
        raise UserError(f"Panel '{path}' says it is {said} but it is {made}: it was changed.")
    return panel


@dataclass(frozen=True)
class Result:
    """One policy's scores on a panel, one attempt a task: what training keeps of a validation.

    Tasks whose episode could not be scored are counted, not scored. `examination` has all that a result file holds.
    """

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
        return sum(self.successes.values()) / self.count if self.count else math.nan

    def interval(self, level: float = 0.95) -> Interval:
        return jeffreys(sum(self.successes.values()), self.count, level)

    def record(self) -> dict[str, Any]:
        interval = self.interval()
        return {
            "success_rate": self.success_rate if self.count else None,
            "low": interval.low,
            "high": interval.high,
            "level": interval.level,
            "n": self.count,
            "errors": len(self.errors),
            "mean_reward": sum(self.rewards.values()) / self.count if self.count else None,
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
