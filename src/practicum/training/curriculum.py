"""Which tasks are drawn and which groups of trajectories are trained on.

Tasks come one after another, round and round, or from easy to hard as the success rate rises. A group is trained on
when it is scored, large enough to compare, and its rewards differ.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.config.fields import default_of
from practicum.config.train import CurriculumConfig, FilterGroupsConfig
from practicum.errors import UserError
from practicum.task import Task
from practicum.trajectory import Outcome, Trajectory, derive_seed

TrajectoryGroups = list[list[Trajectory]]
"""The trajectories of one task each, in the order in which the tasks were drawn."""

MIN_REWARD_DIFFERENCE = 1e-9


@dataclass(frozen=True)
class GroupFilter:
    """With `enable`, a step trains only on groups with signal, and draws up to
    `max_num_gen_batches` batches of tasks to fill up."""

    enable: bool = default_of(FilterGroupsConfig, "enable")
    max_num_gen_batches: int = default_of(FilterGroupsConfig, "max_num_gen_batches")


def group_scored(episodes: Sequence[Trajectory], min_size: int = 2) -> TrajectoryGroups:
    """Scored episodes by group, in order; a group that failures left with fewer than `min_size` is dropped."""
    groups: dict[str, list[Trajectory]] = {}
    for episode in episodes:
        if episode.scored:
            groups.setdefault(episode.group, []).append(episode)
    return [group for group in groups.values() if len(group) >= min_size]


def has_signal(group: Sequence[Trajectory], greedy_rewards: Mapping[str, float]) -> bool:
    """Whether a group's rewards differ, from each other or from the reward of its greedy rollout."""
    rewards = {episode.reward for episode in group}
    if group[0].group in greedy_rewards:
        rewards.add(greedy_rewards[group[0].group])
    return len(group) == 1 or max(rewards) - min(rewards) > MIN_REWARD_DIFFERENCE


@dataclass(frozen=True)
class CurriculumSettings:
    """Tasks are sorted by `field` into levels.

    The next level is opened once `threshold` of the last `window` episodes of the hardest open level succeeded.
    """

    field: str = default_of(CurriculumConfig, "field")
    threshold: float = default_of(CurriculumConfig, "threshold")
    window: int = default_of(CurriculumConfig, "window")


class TaskStream:
    """Draws tasks from a list; no task comes twice in one draw.

    The tasks of a file are drawn in an order of their own in every epoch (`shuffle_seed`), and the rest of an epoch
    that is smaller than a draw is left out. Generated tasks come in order; with `more`, which returns a longer list
    that begins with the same tasks, they do not repeat as long as it has new ones.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        curriculum: CurriculumSettings | None = None,
        draw: int = 1,
        shuffle_seed: int | None = None,
        more: Callable[[int], Sequence[Task]] | None = None,
    ) -> None:
        self.curriculum, self.shuffle_seed, self.more = curriculum, shuffle_seed, more
        self.levels: list[list[Task]] = []
        self._set_tasks(tasks)
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

    def _set_tasks(self, tasks: Sequence[Task]) -> None:
        self.num_tasks, self._ids = len(tasks), [task.id for task in tasks]
        levels = [list(tasks)] if self.curriculum is None else _by_level(tasks, self.curriculum.field)
        if self.levels and len(levels) != len(self.levels):
            raise UserError(
                f"{len(tasks)} generated tasks have {len(levels)} levels, fewer tasks had {len(self.levels)}: "
                "name another data.curriculum.field, or give the tasks as data.train_files."
            )
        self.levels = levels
        self._level_of = {task.id: index for index, level in enumerate(self.levels) for task in level}

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks, from the open levels in turn; fewer where these have fewer tasks."""
        wanted = [0] * self.open
        left = [len(level) for level in self.levels[: self.open]]
        for draw in itertools.count():
            if sum(wanted) == count or not any(left):
                break
            level = draw % self.open
            if left[level]:
                left[level] -= 1
                wanted[level] += 1
        drawn = [iter(self._draw(level, number)) for level, number in enumerate(wanted)]
        return [task for row in itertools.zip_longest(*drawn) for task in row if task is not None]

    def _draw(self, level: int, count: int) -> list[Task]:
        """The next tasks of a level, at most as many as it has."""
        start = self.cursors[level]
        self._extend(level, start + count)
        tasks = self.levels[level]
        if self.shuffle_seed is not None and start % len(tasks) + count > len(tasks):
            start += len(tasks) - start % len(tasks)  # the next epoch
        self.cursors[level] = start + count
        if self.shuffle_seed is None:
            return [tasks[index % len(tasks)] for index in range(start, start + count)]
        order = list(range(len(tasks)))
        random.Random(derive_seed("shuffle", self.shuffle_seed, level, start // len(tasks))).shuffle(order)
        return [tasks[order[index % len(tasks)]] for index in range(start, start + count)]

    def _extend(self, level: int, count: int) -> None:
        """Generate more tasks until a level has `count`, or a longer list brings it none: then they come again."""
        while self.more is not None and len(self.levels[level]) < count:
            tasks, before = self.more(2 * self.num_tasks), len(self.levels[level])
            if len(tasks) > self.num_tasks and [task.id for task in tasks[: self.num_tasks]] == self._ids:
                self._set_tasks(tasks)
            if len(self.levels[level]) == before:
                self.more = None

    def update(self, episodes: Sequence[Trajectory]) -> None:
        """Count the successes of scored episodes; open the next level once the hardest open one is mastered."""
        if self.curriculum is None:
            return
        for episode in episodes:
            if episode.scored:
                self.recent[self._level_of[episode.task.id]].append(int(episode.outcome is Outcome.SUCCESS))
        recent = self.recent[self.open - 1]
        mastered = len(recent) == recent.maxlen and sum(recent) >= self.curriculum.threshold * len(recent)
        if mastered and self.open < len(self.levels):
            self.open += 1

    def metrics(self) -> dict[str, float]:
        return {} if self.curriculum is None else {"curriculum/open_levels": float(self.open)}

    def state(self) -> dict[str, Any]:
        return {"open": self.open, "cursors": list(self.cursors), "recent": [list(recent) for recent in self.recent]}

    def restore(self, state: dict[str, Any]) -> None:
        self.open, self.cursors = int(state["open"]), [int(n) for n in state["cursors"]]
        for recent, values in zip(self.recent, state["recent"], strict=True):
            recent.clear()
            recent.extend(values)


def _by_level(tasks: Sequence[Task], field: str) -> list[list[Task]]:
    """Tasks by the rank of their field's value among those of their own environment.

    So the levels of several environments, whatever their values are, are opened together. An environment whose tasks
    have no such field is open from the start, unless it is the only one.
    """
    if not any(field in task.fields for task in tasks):
        raise _no_field(field, tasks[0])
    by_environment: dict[str, dict[Any, list[Task]]] = {}
    without_field = {task.environment for task in tasks} - {task.environment for task in tasks if field in task.fields}
    for task in tasks:
        if field not in task.fields and task.environment not in without_field:
            raise _no_field(field, task)
        by_environment.setdefault(task.environment, {}).setdefault(task.fields.get(field), []).append(task)
    levels: list[list[Task]] = []
    for by_value in by_environment.values():
        try:
            ranked = sorted(by_value)
        except TypeError:
            raise UserError(f"data.curriculum.field={field}: its values cannot be put in order.") from None
        for rank, value in enumerate(ranked):
            levels.extend([] for _ in range(rank + 1 - len(levels)))
            levels[rank] += by_value[value]
    position = {task.id: index for index, task in enumerate(tasks)}
    return [sorted(level, key=lambda task: position[task.id]) for level in levels]


def _no_field(field: str, task: Task) -> UserError:
    return UserError(
        f"data.curriculum.field={field}: task '{task.id}' has no such field; name one that all tasks have."
    )
