"""Which tasks come next: in order, round and round, or from easy to hard as success is measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from practicum.errors import UserError
from practicum.task import Task
from practicum.trajectory import Outcome, Trajectory


@dataclass(frozen=True)
class CurriculumSettings:
    """Tasks are sorted by `field`; the next level opens once `threshold` of the last `window` episodes
    of the hardest open one succeeded."""

    field: str = "level"
    threshold: float = 0.7
    window: int = 64


class TaskStream:
    """A list of tasks, walked in order; `take` never gives a task twice in one draw."""

    def __init__(self, tasks: Sequence[Task], curriculum: CurriculumSettings | None = None, draw: int = 1) -> None:
        self.curriculum = curriculum
        self.levels = [list(tasks)] if curriculum is None else _by_level(tasks, curriculum.field)
        if len(self.levels[0]) < draw:
            easiest = "" if curriculum is None else " of the easiest level"
            raise UserError(
                f"{len(self.levels[0])} training tasks{easiest} are fewer than the {draw} of one step; "
                "lower data.train_batch_size."
            )
        self.open = 1
        self.cursors = [0] * len(self.levels)
        window = curriculum.window if curriculum is not None else 1
        self.recent: list[deque[int]] = [deque(maxlen=window) for _ in self.levels]
        self._level_of = {task.id: number for number, level in enumerate(self.levels) for task in level}

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks, the open levels in turn; fewer where these do not have as many."""
        taken: list[Task] = []
        left = [len(level) for level in self.levels[: self.open]]
        turn = 0
        while len(taken) < count and any(left):
            level = turn % self.open
            turn += 1
            if left[level]:
                left[level] -= 1
                tasks = self.levels[level]
                taken.append(tasks[self.cursors[level] % len(tasks)])
                self.cursors[level] += 1
        return taken

    def hear(self, episodes: Sequence[Trajectory]) -> None:
        """Count successes; open the next level when the hardest open one is mastered."""
        if self.curriculum is None:
            return
        for episode in episodes:
            if episode.scored:
                self.recent[self._level_of[episode.task.id]].append(int(episode.outcome is Outcome.SUCCESS))
        known = self.recent[self.open - 1]
        mastered = len(known) == known.maxlen and sum(known) >= self.curriculum.threshold * len(known)
        if mastered and self.open < len(self.levels):
            self.open += 1

    def metrics(self) -> dict[str, float]:
        return {} if self.curriculum is None else {"curriculum/open_levels": float(self.open)}

    def state(self) -> dict[str, Any]:
        return {"open": self.open, "cursors": list(self.cursors), "recent": [list(known) for known in self.recent]}

    def restore(self, state: dict[str, Any]) -> None:
        self.open, self.cursors = int(state["open"]), [int(n) for n in state["cursors"]]
        for known, values in zip(self.recent, state["recent"], strict=True):
            known.clear()
            known.extend(values)


def _by_level(tasks: Sequence[Task], field: str) -> list[list[Task]]:
    levels: dict[Any, list[Task]] = {}
    for task in tasks:
        if field not in task.fields:
            raise UserError(
                f"data.curriculum.field={field}: task '{task.id}' has no such field; name one that all tasks have."
            )
        levels.setdefault(task.fields[field], []).append(task)
    try:
        return [levels[key] for key in sorted(levels)]
    except TypeError:
        raise UserError(f"data.curriculum.field={field}: its values cannot be put in order.") from None
