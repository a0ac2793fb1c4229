"""Rewards that depend on a whole group: a function sees the episodes of one task together and adjusts their rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from practicum import registry
from practicum.errors import UserError, describe_exception
from practicum.training.rollout_batch import TrajectoryGroups
from practicum.trajectory import Trajectory

GroupFunction = Callable[[Sequence[Trajectory], Sequence[float]], Sequence[float]]
"""Takes the scored episodes of one task and their rewards; returns the adjusted rewards in the same order."""


@dataclass(frozen=True)
class GroupReward:
    """A group-reward function by name. What it adds is recorded as the reward component of that name."""

    component: str
    function: GroupFunction
    weight: float = 1.0
    """Factor on the difference that the function makes."""

    def apply(
        self, groups: TrajectoryGroups, episodes: Sequence[Trajectory]
    ) -> tuple[TrajectoryGroups, list[Trajectory]]:
        """Return the groups, and all episodes of the rollout, with the adjusted rewards in the record."""
        adjusted = [self.adjust(group) for group in groups]
        new = {
            id(episode): changed
            for group, changed_group in zip(groups, adjusted, strict=True)
            for episode, changed in zip(group, changed_group, strict=True)
        }
        return adjusted, [new.get(id(episode), episode) for episode in episodes]

    def adjust(self, group: Sequence[Trajectory]) -> list[Trajectory]:
        """Return the episodes of a group with their adjusted rewards."""
        rewards = [episode.reward for episode in group]
        try:
            values = [float(value) for value in self.function(group, rewards)]
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"algorithm.group_reward '{self.component}' failed: {describe_exception(error)}."
            ) from error
        if len(values) != len(group) or not all(map(math.isfinite, values)):
            raise UserError(
                f"algorithm.group_reward '{self.component}' returned {values} for {len(group)} episodes; it must "
                "return one finite number for each."
            )
        return [
            _with_bonus(episode, self.component, self.weight * (value - reward))
            for episode, value, reward in zip(group, values, rewards, strict=True)
        ]


def _with_bonus(episode: Trajectory, component: str, bonus: float) -> Trajectory:
    """The episode with a bonus on its last turn."""
    turns = episode.turns
    if turns:
        last = turns[-1]
        last = replace(last, reward=last.reward + bonus, components={**last.components, component: bonus})
        turns = (*turns[:-1], last)
    components = {**episode.components, component: bonus}
    return replace(episode, turns=turns, reward=episode.reward + bonus, components=components)


def find_group_reward(name: str, weight: float) -> GroupReward:
    """Return the group reward of a name in the registry or `path/to/file.py:function`."""
    return GroupReward(name.rpartition(":")[2], registry.group_reward(name), weight)
