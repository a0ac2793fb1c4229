"""Which groups of trajectories are trained on: scored, large enough to compare, and with a difference in reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from practicum.config.fields import default_of
from practicum.config.train import FilterGroupsConfig
from practicum.trajectory import Trajectory

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
