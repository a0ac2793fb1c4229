"""From grouped trajectories to an advantage for every sampled token.

An estimator gets groups (the scored trajectories of one task each, as `Rated` records) and gives, for
each trajectory, one number a sampled token, in order. Adding one: a pure function in
`algorithms/advantages.py`, its golden values beside it in the tests, and an entry in ESTIMATORS here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from practicum.algorithms import advantages
from practicum.trajectory import Origin, Trajectory
from practicum.utils.arrays import FloatArray, IntArray

PER_TOKEN, PER_TURN_AND_TOKEN = "token-mean", "seq-mean-turn-mean-token-mean"


@dataclass(frozen=True)
class EstimatorSettings:
    """What estimators read besides the rewards.

    `turn_rewards` puts every turn's own reward at that turn's last token; otherwise the whole reward
    stands at the trajectory's last one. `bootstrap`: whether a cut-off episode goes on in the critic's eyes.
    """

    gamma: float = 1.0
    lam: float = 1.0
    normalise: bool = True
    turn_rewards: bool = False
    row_weighted: bool = False
    bootstrap: bool = True


@dataclass(frozen=True)
class TokenRewards:
    """What an estimator reads of one trajectory: a reward and a turn number for each sampled token [T].

    `values` and `last_value` (of the state after the last token) come from the critic; `greedy` is the
    reward of a greedy rollout of the same task.
    """

    rewards: FloatArray
    turns: IntArray
    truncated: bool = False
    values: FloatArray | None = None
    last_value: float = 0.0
    greedy_reward: float | None = None

    @property
    def total(self) -> float:
        return float(self.rewards.sum())

    @property
    def num_turns(self) -> int:
        return len(np.unique(self.turns))


Groups = Sequence[Sequence[TokenRewards]]


@dataclass(frozen=True)
class Advantages:
    """Advantages, and for a critic the returns it should have foreseen (NaN where it is not asked)."""

    advantages: list[list[FloatArray]]
    returns: list[list[FloatArray]] | None = None


@dataclass(frozen=True)
class Estimator:
    """A named way to credit tokens.

    `smallest_group`: chains it needs; `greedy`, `critic`: what else it needs; `aggregation`: how its
    paper weighs tokens.
    """

    function: Callable[[Groups, EstimatorSettings], Advantages]
    min_group_size: int = 1
    needs_greedy_rollout: bool = False
    needs_critic: bool = False
    aggregation: str = PER_TOKEN


def turn_lengths(episode: Trajectory) -> list[int]:
    """The sampled tokens of every turn."""
    return [sum([len(s.ids) for s in turn.spans if s.origin is Origin.SAMPLED]) for turn in episode.turns]


def num_sampled_tokens(episode: Trajectory) -> int:
    return sum(turn_lengths(episode))


def token_rewards(episode: Trajectory, settings: EstimatorSettings) -> TokenRewards:
    """An episode's rewards, put on its tokens."""
    lengths = turn_lengths(episode)
    turns = np.repeat(np.arange(len(lengths)), lengths)
    rewards = np.zeros(len(turns))
    if len(turns) and settings.turn_rewards:
        owed = 0.0  # by turns without a token of their own
        for number, turn in enumerate(episode.turns):
            places = np.flatnonzero(turns == number)
            owed += turn.reward
            if len(places):
                rewards[places[-1]], owed = owed, 0.0
        rewards[-1] += owed
    elif len(turns):
        rewards[-1] = episode.reward
    return TokenRewards(rewards, turns, episode.outcome == "truncated")


def _spread(groups: Groups, scalars: Sequence[Sequence[float]]) -> Advantages:
    """One number a trajectory, the same for all its tokens."""
    return Advantages(
        [
            [np.full(len(rated.rewards), value) for rated, value in zip(group, values, strict=True)]
            for group, values in zip(groups, scalars, strict=True)
        ]
    )


def _regroup(groups: Groups, flat: Sequence[FloatArray]) -> list[list[FloatArray]]:
    rest = iter(flat)
    return [[next(rest) for _ in group] for group in groups]


def _totals(group: Sequence[TokenRewards]) -> list[float]:
    return [rated.total for rated in group]


def _grpo(groups: Groups, settings: EstimatorSettings) -> Advantages:
    return _spread(groups, [advantages.grpo(_totals(group), settings.normalise) for group in groups])


def _flow_grpo(groups: Groups, settings: EstimatorSettings) -> Advantages:
    counts = [[rated.num_turns for rated in group] for group in groups]
    scalars = [
        advantages.flow_grpo(_totals(group), turns, settings.row_weighted, settings.normalise)
        for group, turns in zip(groups, counts, strict=True)
    ]
    return _spread(groups, scalars)


def _rloo(groups: Groups, settings: EstimatorSettings) -> Advantages:
    return _spread(groups, [advantages.rloo(_totals(group)) for group in groups])


def _remax(groups: Groups, settings: EstimatorSettings) -> Advantages:
    """Return-to-go against the greedy rollout's reward."""

    def row(rated: TokenRewards) -> FloatArray:
        assert rated.greedy_reward is not None, "remax needs a greedy rollout"
        return advantages.remax(rated.rewards, rated.greedy_reward)

    return Advantages([[row(rated) for rated in group] for group in groups])


def _reinforce(groups: Groups, settings: EstimatorSettings) -> Advantages:
    rows = [rated.rewards for group in groups for rated in group]
    return Advantages(_regroup(groups, advantages.reinforce_plus_plus(rows, settings.gamma)))


def _reinforce_baseline(groups: Groups, settings: EstimatorSettings) -> Advantages:
    centred = _spread(groups, [advantages.grpo(_totals(group), normalise=False) for group in groups]).advantages
    return Advantages(_regroup(groups, advantages.whiten([row for group in centred for row in group])))


def _gae(groups: Groups, settings: EstimatorSettings) -> Advantages:
    """Over tokens, then whitened over the batch; returns before whitening."""
    pairs = [
        advantages.gae(rated.rewards, _values(rated), settings.gamma, settings.lam, _beyond(rated, settings))
        for group in groups
        for rated in group
    ]
    whitened = advantages.whiten([advantage for advantage, _ in pairs])
    return Advantages(_regroup(groups, whitened), _regroup(groups, [returns for _, returns in pairs]))


def _turn_gae(groups: Groups, settings: EstimatorSettings) -> Advantages:
    """Over turns: a turn's reward and the value of the state it began in; all its tokens share the credit."""
    painted: list[FloatArray] = []
    targets: list[FloatArray] = []
    for rated in (rated for group in groups for rated in group):
        numbers, starts, owner = np.unique(rated.turns, return_index=True, return_inverse=True)
        rewards = np.zeros(len(numbers))
        np.add.at(rewards, owner, rated.rewards)
        by_turn, returns = advantages.gae(
            rewards, _values(rated)[starts], settings.gamma, settings.lam, _beyond(rated, settings)
        )
        target = np.full(len(rated.turns), np.nan)
        target[starts] = returns
        painted.append(by_turn[owner])
        targets.append(target)
    return Advantages(_regroup(groups, advantages.whiten(painted)), _regroup(groups, targets))


def _values(rated: TokenRewards) -> FloatArray:
    assert rated.values is not None, "this estimator needs a critic"
    return rated.values


def _beyond(rated: TokenRewards, settings: EstimatorSettings) -> float:
    return rated.last_value if rated.truncated and settings.bootstrap else 0.0


ESTIMATORS: dict[str, Estimator] = {
    "gae": Estimator(_gae, needs_critic=True),
    "turn_gae": Estimator(_turn_gae, needs_critic=True),
    "grpo": Estimator(_grpo, min_group_size=2),
    "flow_grpo": Estimator(_flow_grpo, min_group_size=2, aggregation=PER_TURN_AND_TOKEN),
    "rloo": Estimator(_rloo, min_group_size=2),
    "remax": Estimator(_remax, needs_greedy_rollout=True),
    "reinforce_plus_plus": Estimator(_reinforce),
    "reinforce_plus_plus_baseline": Estimator(_reinforce_baseline, min_group_size=2),
}
