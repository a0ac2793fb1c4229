"""From grouped trajectories to an advantage for every sampled token.

An estimator gets groups (the scored trajectories of one task each) and gives, for each trajectory,
one number a sampled token, in order. Adding one: a pure function in `algorithms/advantages.py`, its
golden values beside it in the tests, and an entry in ESTIMATORS here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from practicum.algorithms import advantages
from practicum.algorithms.advantages import Floats
from practicum.trajectory import Trajectory

Groups = Sequence[Sequence[Trajectory]]


@dataclass(frozen=True)
class EstimatorSettings:
    """What estimators read besides the rewards."""

    gamma: float = 1.0
    normalise: bool = True


@dataclass(frozen=True)
class Estimator:
    """A named way to credit tokens. `smallest_group`: chains it needs; `greedy`: whether it needs a greedy rollout."""

    function: Callable[[Groups, EstimatorSettings, Mapping[str, float]], list[list[Floats]]]
    smallest_group: int = 1
    greedy: bool = False


def sampled_count(episode: Trajectory) -> int:
    return sum(sum(run.sampled) for run in episode.sequences())


def token_rewards(episode: Trajectory) -> Floats:
    """The whole reward at the last sampled token, nothing before [T]."""
    rewards = np.zeros(sampled_count(episode))
    if len(rewards):
        rewards[-1] = episode.reward
    return rewards


def _spread(groups: Groups, scalars: Sequence[Sequence[float]]) -> list[list[Floats]]:
    """One number a trajectory, the same for all its tokens."""
    return [
        [np.full(sampled_count(episode), value) for episode, value in zip(group, values, strict=True)]
        for group, values in zip(groups, scalars, strict=True)
    ]


def _regroup(groups: Groups, flat: Sequence[Floats]) -> list[list[Floats]]:
    rest = iter(flat)
    return [[next(rest) for _ in group] for group in groups]


def _grpo(groups: Groups, settings: EstimatorSettings, greedy: Mapping[str, float]) -> list[list[Floats]]:
    return _spread(groups, [advantages.grpo([e.reward for e in group], settings.normalise) for group in groups])


def _rloo(groups: Groups, settings: EstimatorSettings, greedy: Mapping[str, float]) -> list[list[Floats]]:
    return _spread(groups, [advantages.rloo([e.reward for e in group]) for group in groups])


def _remax(groups: Groups, settings: EstimatorSettings, greedy: Mapping[str, float]) -> list[list[Floats]]:
    return _spread(groups, [advantages.remax([e.reward for e in group], greedy[group[0].group]) for group in groups])


def _reinforce(groups: Groups, settings: EstimatorSettings, greedy: Mapping[str, float]) -> list[list[Floats]]:
    rows = [token_rewards(episode) for group in groups for episode in group]
    return _regroup(groups, advantages.reinforce_plus_plus(rows, settings.gamma))


def _reinforce_baseline(groups: Groups, settings: EstimatorSettings, greedy: Mapping[str, float]) -> list[list[Floats]]:
    centred = _spread(groups, [advantages.grpo([e.reward for e in group], normalise=False) for group in groups])
    return _regroup(groups, advantages.whiten([row for group in centred for row in group]))


ESTIMATORS: dict[str, Estimator] = {
    "grpo": Estimator(_grpo, smallest_group=2),
    "rloo": Estimator(_rloo, smallest_group=2),
    "remax": Estimator(_remax, greedy=True),
    "reinforce_plus_plus": Estimator(_reinforce),
    "reinforce_plus_plus_baseline": Estimator(_reinforce_baseline, smallest_group=2),
}
