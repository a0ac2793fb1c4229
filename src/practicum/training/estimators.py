"""Advantage estimators: from grouped trajectories to an advantage for every sampled token.

An estimator gets groups (the scored trajectories of one task each, as `TokenRewards`) and returns, for each
trajectory, one number per sampled token, in order. Adding one: a pure function in `algorithms/advantages.py`, its
golden values in `tests/algorithms/test_advantages.py`, and an entry in ESTIMATORS here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from practicum.algorithms import advantages
from practicum.config.fields import default_of
from practicum.config.train import AlgorithmConfig
from practicum.environment import DEFAULT_ROLE
from practicum.errors import UserError, did_you_mean
from practicum.trajectory import Trajectory, is_trained
from practicum.utils.arrays import BoolArray, FloatArray, IntArray

ROLE_CREDITS = ("shared", "own")
"""Values of `algorithm.role_credit`."""


@dataclass(frozen=True)
class OverlongBuffer:
    """DAPO's overlong reward shaping (arXiv:2503.14476, section 3.4), for every reply of an episode.

    A reply of more than `max_tokens - length` tokens costs reward: linearly more, `penalty_factor` at `max_tokens`.
    """

    length: int
    penalty_factor: float
    max_tokens: int
    role_max_tokens: Mapping[str, int] = field(default_factory=dict)
    """The limits of roles whose replies have another one than `max_tokens`."""

    def penalty(self, num_tokens: int, role: str = DEFAULT_ROLE) -> float:
        """The reward, 0 or below, of a reply of that length."""
        excess = num_tokens - (self.role_max_tokens.get(role, self.max_tokens) - self.length)
        return -self.penalty_factor * min(max(excess / self.length, 0.0), 1.0)


@dataclass(frozen=True)
class EstimatorSettings:
    """What estimators read besides the rewards.

    `turn_rewards` puts every turn's own reward at that turn's last token; otherwise the whole reward is at the
    trajectory's last one. `bootstrap_truncated`: whether a truncated episode ends in the critic's value.
    `train_roles` are the roles whose sampled tokens are trained, None: all. With the `role_credit` "shared" their
    tokens all have the episode's reward; with "own" every role has its own, and is compared with itself only.
    """

    gamma: float = default_of(AlgorithmConfig, "gamma")
    lam: float = default_of(AlgorithmConfig, "lam")
    norm_adv_by_std_in_grpo: bool = default_of(AlgorithmConfig, "norm_adv_by_std_in_grpo")
    turn_rewards: bool = default_of(AlgorithmConfig, "turn_rewards")
    row_weighted: bool = default_of(AlgorithmConfig, "row_weighted")
    bootstrap_truncated: bool | None = default_of(AlgorithmConfig, "bootstrap_truncated")
    overlong_buffer: OverlongBuffer | None = None
    train_roles: tuple[str, ...] | None = None
    role_credit: str = default_of(AlgorithmConfig, "role_credit")

    def __post_init__(self) -> None:
        if self.role_credit not in ROLE_CREDITS:
            hint = did_you_mean(self.role_credit, ROLE_CREDITS)
            raise UserError(f"Unknown algorithm.role_credit '{self.role_credit}'.{hint}")

    @property
    def bootstraps(self) -> bool:
        """By default only where rewards are discounted; undiscounted, the limit of turns is part of the task."""
        return self.gamma < 1 if self.bootstrap_truncated is None else self.bootstrap_truncated


@dataclass(frozen=True)
class TokenRewards:
    """What an estimator reads of one trajectory: for each sampled token its reward [T] and its turn's index [T].

    `values` [T] and `last_value` (of the state in which the next turn would begin) come from the critic;
    `greedy_reward` is the reward of a greedy rollout of the same task.
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
    """Advantages [T] of every trajectory by group, and the returns [T] a critic learns from (NaN: no target)."""

    advantages: list[list[FloatArray]]
    returns: list[list[FloatArray]] | None = None


@dataclass(frozen=True)
class Estimator:
    """A named advantage estimator.

    `min_group_size`: the chains per task it needs; `aggregation`: the loss aggregation of its paper.
    """

    function: Callable[[Groups, EstimatorSettings], Advantages]
    min_group_size: int = 1
    needs_greedy_rollout: bool = False
    needs_critic: bool = False
    aggregation: str = "token-mean"


def turn_lengths(episode: Trajectory, roles: Collection[str] | None = None) -> list[int]:
    """Return the number of sampled tokens of every turn; of turns of other roles than `roles` it is 0."""
    return [turn.num_sampled if is_trained(turn, roles) else 0 for turn in episode.turns]


def num_sampled_tokens(episode: Trajectory, roles: Collection[str] | None = None) -> int:
    """Return the number of sampled tokens of an episode, or only those of some roles."""
    return sum(turn_lengths(episode, roles))


def token_rewards(episode: Trajectory, settings: EstimatorSettings) -> TokenRewards:
    """Return an episode's rewards, assigned to its trained tokens."""
    lengths = turn_lengths(episode, settings.train_roles)
    turns = np.repeat(np.arange(len(lengths)), lengths)
    rewards = np.zeros(len(turns))
    needs_roles = settings.role_credit == "own" or settings.overlong_buffer is not None
    roles = np.array([turn.role for turn in episode.turns] if needs_roles else [])
    if settings.role_credit == "own":
        for role in {turn.role for turn, length in zip(episode.turns, lengths, strict=True) if length}:
            own = np.flatnonzero(roles[turns] == role)
            by_turn = role_turn_rewards(episode, role)
            rewards[own] = _assigned(by_turn, sum(by_turn), turns[own], settings)
    elif len(turns):
        rewards = _assigned([turn.reward for turn in episode.turns], episode.reward, turns, settings)
    if settings.overlong_buffer is not None:
        for role, end, length in zip(roles.tolist(), np.cumsum(lengths), lengths, strict=True):
            if length:
                position = end - 1 if settings.turn_rewards else -1
                if settings.role_credit == "own" and not settings.turn_rewards:
                    position = np.flatnonzero(roles[turns] == role)[-1]
                rewards[position] += settings.overlong_buffer.penalty(length, role)
    return TokenRewards(rewards, turns, episode.outcome == "truncated")


def _assigned(by_turn: Sequence[float], total: float, turns: IntArray, settings: EstimatorSettings) -> FloatArray:
    """Rewards of turns, assigned to tokens whose turns are given: per turn, or all at the last token."""
    rewards = np.zeros(len(turns))
    if not settings.turn_rewards:
        rewards[-1] = total
        return rewards
    pending = 0.0  # of turns without a trained token
    for index, reward in enumerate(by_turn):
        positions = np.flatnonzero(turns == index)
        pending += reward
        if len(positions):
            rewards[positions[-1]], pending = pending, 0.0
    rewards[-1] += pending
    return rewards


def role_turn_rewards(episode: Trajectory, role: str) -> list[float]:
    """Return a role's own reward in every turn: what the environment gave to that role by name, or, where it gave it
    nothing by name in the whole episode, the rewards of the role's own turns."""
    if any(role in turn.role_rewards for turn in episode.turns):
        return [turn.role_rewards.get(role, 0.0) for turn in episode.turns]
    return [turn.reward if turn.role == role else 0.0 for turn in episode.turns]


def estimate(
    estimator: Estimator, groups: Sequence[Sequence[Trajectory]], rewards: Groups, settings: EstimatorSettings
) -> Advantages:
    """Return the advantages of all groups; with `role_credit` "own" each role's tokens among themselves."""
    if settings.role_credit != "own":
        return estimator.function(rewards, settings)
    advantages = [[np.zeros(len(trajectory.rewards)) for trajectory in group] for group in rewards]
    returns = [[np.full(len(trajectory.rewards), np.nan) for trajectory in group] for group in rewards]
    has_returns = False
    for role in sorted({turn.role for group in groups for episode in group for turn in episode.turns}):
        masks = [
            [
                np.array([turn.role == role for turn in episode.turns], dtype=np.bool_)[trajectory.turns]
                for episode, trajectory in zip(group, group_rewards, strict=True)
            ]
            for group, group_rewards in zip(groups, rewards, strict=True)
        ]
        # A trajectory in which the role did not act has no token of it, and no place in its baseline.
        acted = [[index for index, mask in enumerate(group) if mask.any()] for group in masks]
        group_indices = [group for group, indices in enumerate(acted) if len(indices) >= estimator.min_group_size]
        if not group_indices:
            continue
        own = estimator.function(
            [
                [_tokens_of(rewards[group_index][index], masks[group_index][index]) for index in acted[group_index]]
                for group_index in group_indices
            ],
            settings,
        )
        for row, group_index in enumerate(group_indices):
            for column, index in enumerate(acted[group_index]):
                advantages[group_index][index][masks[group_index][index]] = own.advantages[row][column]
                if own.returns is not None:
                    has_returns = True
                    returns[group_index][index][masks[group_index][index]] = own.returns[row][column]
    return Advantages(advantages, returns if has_returns else None)


def _tokens_of(trajectory: TokenRewards, mask: BoolArray) -> TokenRewards:
    """The tokens of one role."""
    values = None if trajectory.values is None else trajectory.values[mask]
    return replace(trajectory, rewards=trajectory.rewards[mask], turns=trajectory.turns[mask], values=values)


def _same_for_all_tokens(groups: Groups, scalars: Sequence[Sequence[float]]) -> Advantages:
    """One number per trajectory, given to each of its tokens."""
    return Advantages(
        [
            [np.full(len(trajectory.rewards), value) for trajectory, value in zip(group, values, strict=True)]
            for group, values in zip(groups, scalars, strict=True)
        ]
    )


def _regroup(groups: Groups, flat: Sequence[FloatArray]) -> list[list[FloatArray]]:
    remaining = iter(flat)
    return [[next(remaining) for _ in group] for group in groups]


def _totals(group: Sequence[TokenRewards]) -> list[float]:
    return [trajectory.total for trajectory in group]


def _grpo(groups: Groups, settings: EstimatorSettings) -> Advantages:
    return _same_for_all_tokens(
        groups, [advantages.grpo(_totals(group), settings.norm_adv_by_std_in_grpo) for group in groups]
    )


def _flow_grpo(groups: Groups, settings: EstimatorSettings) -> Advantages:
    """Every trajectory's reward, discounted per turn, compared within its group and given to all of its turns."""
    counts = [[trajectory.num_turns for trajectory in group] for group in groups]
    totals = [[_return_at_start(trajectory, settings.gamma) for trajectory in group] for group in groups]
    scalars = [
        advantages.flow_grpo(group, num_turns, settings.row_weighted, settings.norm_adv_by_std_in_grpo)
        for group, num_turns in zip(totals, counts, strict=True)
    ]
    return _same_for_all_tokens(groups, scalars)


def _return_at_start(trajectory: TokenRewards, gamma: float) -> float:
    """The discounted return of a trajectory's first turn; undiscounted, its whole reward."""
    if gamma == 1:
        return trajectory.total
    turns, owner = np.unique(trajectory.turns, return_inverse=True)
    rewards = np.zeros(len(turns))
    np.add.at(rewards, owner, trajectory.rewards)
    return advantages.discounted_return(rewards, gamma)


def _rloo(groups: Groups, settings: EstimatorSettings) -> Advantages:
    return _same_for_all_tokens(groups, [advantages.rloo(_totals(group)) for group in groups])


def _remax(groups: Groups, settings: EstimatorSettings) -> Advantages:
    """Return-to-go minus the reward of the greedy rollout."""

    def row(trajectory: TokenRewards) -> FloatArray:
        assert trajectory.greedy_reward is not None, "remax needs a greedy rollout"
        return advantages.remax(trajectory.rewards, trajectory.greedy_reward)

    return Advantages([[row(trajectory) for trajectory in group] for group in groups])


def _plain_reinforce(groups: Groups, settings: EstimatorSettings) -> Advantages:
    """The reward itself, without a baseline: with tokens summed the loss is -R · Σ log p."""
    return _same_for_all_tokens(groups, [_totals(group) for group in groups])


def _reinforce(groups: Groups, settings: EstimatorSettings) -> Advantages:
    rows = [trajectory.rewards for group in groups for trajectory in group]
    return Advantages(_regroup(groups, advantages.reinforce_plus_plus(rows, settings.gamma)))


def _reinforce_baseline(groups: Groups, settings: EstimatorSettings) -> Advantages:
    scalars = [advantages.grpo(_totals(group), normalise=False) for group in groups]
    centred = _same_for_all_tokens(groups, scalars).advantages
    return Advantages(_regroup(groups, advantages.whiten([row for group in centred for row in group])))


def _gae(groups: Groups, settings: EstimatorSettings) -> Advantages:
    """Over tokens, then whitened over the batch; returns are taken before whitening."""
    pairs = [
        advantages.gae(
            trajectory.rewards,
            _values(trajectory),
            settings.gamma,
            settings.lam,
            _bootstrap_value(trajectory, settings),
        )
        for group in groups
        for trajectory in group
    ]
    whitened = advantages.whiten([advantage for advantage, _ in pairs])
    return Advantages(_regroup(groups, whitened), _regroup(groups, [returns for _, returns in pairs]))


def _turn_gae(groups: Groups, settings: EstimatorSettings) -> Advantages:
    """Over turns: a turn's reward and the value of the state it began in; its tokens all get its advantage."""
    rows: list[FloatArray] = []
    targets: list[FloatArray] = []
    for trajectory in (trajectory for group in groups for trajectory in group):
        turns, starts, owner = np.unique(trajectory.turns, return_index=True, return_inverse=True)
        rewards = np.zeros(len(turns))
        np.add.at(rewards, owner, trajectory.rewards)
        turn_advantages, returns = advantages.gae(
            rewards, _values(trajectory)[starts], settings.gamma, settings.lam, _bootstrap_value(trajectory, settings)
        )
        target = np.full(len(trajectory.turns), np.nan)
        target[starts] = returns
        rows.append(turn_advantages[owner])
        targets.append(target)
    return Advantages(_regroup(groups, advantages.whiten(rows)), _regroup(groups, targets))


def _values(trajectory: TokenRewards) -> FloatArray:
    assert trajectory.values is not None, "this estimator needs a critic"
    return trajectory.values


def _bootstrap_value(trajectory: TokenRewards, settings: EstimatorSettings) -> float:
    """The value of the state after the last token: the critic's where the episode was truncated, else 0."""
    return trajectory.last_value if trajectory.truncated and settings.bootstraps else 0.0


ESTIMATORS: dict[str, Estimator] = {
    "gae": Estimator(_gae, needs_critic=True),
    "turn_gae": Estimator(_turn_gae, needs_critic=True),
    "grpo": Estimator(_grpo, min_group_size=2),
    "flow_grpo": Estimator(_flow_grpo, min_group_size=2, aggregation="seq-mean-turn-mean-token-mean"),
    "rloo": Estimator(_rloo, min_group_size=2),
    "remax": Estimator(_remax, needs_greedy_rollout=True),
    "reinforce": Estimator(_plain_reinforce, aggregation="seq-mean-token-sum"),
    "reinforce_plus_plus": Estimator(_reinforce),
    "reinforce_plus_plus_baseline": Estimator(_reinforce_baseline, min_group_size=2),
}
"""The values of `algorithm.adv_estimator`."""
