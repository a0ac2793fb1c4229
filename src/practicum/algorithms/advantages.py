"""How much better than expected was each trajectory? Pure functions over the rewards of one group."""

from __future__ import annotations

import math
from collections.abc import Sequence

EPSILON = 1e-6


def grpo(rewards: Sequence[float], normalise: bool = True) -> list[float]:
    """Group-relative advantages: (R - mean) / (std + 1e-6), std unbiased.

    A group of one has no baseline: its advantage is its reward (plain REINFORCE). `normalise=False`
    leaves the division out (Dr.GRPO).

    Shao et al. 2024 (arXiv:2402.03300); Liu et al. 2025 (arXiv:2503.20783) for `normalise=False`.
    """
    count = len(rewards)
    if count == 0:
        return []
    if count == 1:
        return [float(rewards[0])]
    mean = math.fsum(rewards) / count
    if not normalise:
        return [reward - mean for reward in rewards]
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (count - 1))
    return [(reward - mean) / (deviation + EPSILON) for reward in rewards]
