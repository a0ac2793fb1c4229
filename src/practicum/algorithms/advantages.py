"""Advantages: pure functions over the rewards of a group of trajectories, or of the tokens of one.

Adding an estimator: a function here and its entry in `training/estimators.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from practicum.utils.arrays import FloatArray

STD_EPSILON = 1e-6
VARIANCE_EPSILON = 1e-8


def grpo(rewards: Sequence[float], normalise: bool = True) -> list[float]:
    """Return the group-relative advantage of each trajectory: (R - mean) / (std + 1e-6), std unbiased.

    A group of one has no baseline: its advantage is its reward (plain REINFORCE). `normalise=False`
    leaves the division out (Dr.GRPO).

    Shao et al. 2024 (arXiv:2402.03300); Liu et al. 2025 (arXiv:2503.20783) for `normalise=False`.
    """
    count = len(rewards)
    if count < 2:
        return [float(reward) for reward in rewards]
    mean = math.fsum(rewards) / count
    if not normalise:
        return [reward - mean for reward in rewards]
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (count - 1))
    return [(reward - mean) / (deviation + STD_EPSILON) for reward in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """Return each reward minus the mean of the others: n/(n-1)·(R - mean). A group of one keeps its reward.

    Ahmadian et al. 2024 (arXiv:2402.14740).
    """
    count = len(rewards)
    if count < 2:
        return [float(reward) for reward in rewards]
    mean = math.fsum(rewards) / count
    return [count / (count - 1) * (reward - mean) for reward in rewards]


def returns_to_go(rewards: FloatArray, gamma: float) -> FloatArray:
    """Return G_t = r_t + γ·G_{t+1} over the sampled tokens [T].

    Observation tokens are not in the list, so the return is carried across them undiscounted; masking
    it at each gap (as is commonly done) would leave all turns but the last with a return of zero.
    Sutton and Barto 2018, "Reinforcement Learning: An Introduction", 3.3.
    """
    returns = np.zeros_like(rewards, dtype=np.float64)
    running = 0.0
    for index in range(len(rewards) - 1, -1, -1):
        running = float(rewards[index]) + gamma * running
        returns[index] = running
    return returns


def discounted_return(rewards: FloatArray, gamma: float) -> float:
    """Return the sum of γ^t·r_t over the turns [T] of a trajectory: its return at the first turn."""
    return math.fsum(gamma**turn * float(reward) for turn, reward in enumerate(rewards))


def remax(rewards: FloatArray, baseline: float) -> FloatArray:
    """Return the returns-to-go of a trajectory's tokens [T] minus the reward of the greedy rollout of the same task.

    Li et al. 2023 (arXiv:2310.10505).
    """
    return returns_to_go(rewards, 1.0) - baseline


def whiten(values: Sequence[FloatArray]) -> list[FloatArray]:
    """Return the values with mean 0 and variance 1 (unbiased) over the whole batch; fewer than two are only centred."""
    flat = np.concatenate([np.asarray(v, dtype=np.float64) for v in values]) if values else np.zeros(0)
    if len(flat) == 0:
        return [np.asarray(v, dtype=np.float64) for v in values]
    scale = 1.0 if len(flat) < 2 else 1.0 / math.sqrt(float(flat.var(ddof=1)) + VARIANCE_EPSILON)
    return [(np.asarray(v, dtype=np.float64) - float(flat.mean())) * scale for v in values]


def reinforce_plus_plus(rewards: Sequence[FloatArray], gamma: float = 1.0) -> list[FloatArray]:
    """Return the returns-to-go of every token [T], whitened over the batch. Hu 2025 (arXiv:2501.03262)."""
    return whiten([returns_to_go(row, gamma) for row in rewards])


def gae(
    rewards: FloatArray, values: FloatArray, gamma: float, lam: float, bootstrap: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Return the generalised advantages and the returns a critic learns from, over the policy's own steps [T].

    δ_t = r_t + γ·V_{t+1} - V_t; A_t = δ_t + γλ·A_{t+1}; return_t = A_t + V_t. A step is a sampled token
    (observations are not in the list, so values and errors are carried across them) or a whole turn.
    `bootstrap` is the value of the state after the last step: zero where the episode terminated, the
    critic's value where it was truncated. Schulman et al. 2015 (arXiv:1506.02438).
    """
    advantages = np.zeros(len(rewards), dtype=np.float64)
    running, next_value = 0.0, float(bootstrap)
    for index in range(len(rewards) - 1, -1, -1):
        value = float(values[index])
        running = float(rewards[index]) + gamma * next_value - value + gamma * lam * running
        advantages[index] = running
        next_value = value
    return advantages, advantages + np.asarray(values, dtype=np.float64)


def flow_grpo(
    rewards: Sequence[float], num_turns: Sequence[int], row_weighted: bool = False, normalise: bool = True
) -> list[float]:
    """Return the group-relative advantage of each trajectory, which all its turns get.

    Mean and deviation are taken over trajectories. `row_weighted` takes them over turns instead, so
    that long trajectories weigh more (what the authors' code does; the paper's formula does not).
    `normalise=False` leaves the division out, as in `grpo`.

    Li et al. 2025, AgentFlow (arXiv:2510.05592).
    """
    if not row_weighted:
        return grpo(rewards, normalise)
    counts = [max(1, count) for count in num_turns]
    repeated = [reward for reward, count in zip(rewards, counts, strict=True) for _ in range(count)]
    by_turn = grpo(repeated, normalise)
    starts = np.cumsum([0, *counts[:-1]])
    return [by_turn[start] for start in starts]
