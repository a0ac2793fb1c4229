"""How sure is a score? Intervals and paired tests, from scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True, slots=True)
class Interval:
    """A range and the level it is meant to cover with."""

    low: float
    high: float
    level: float


def jeffreys(successes: float, count: int, level: float = 0.95) -> Interval:
    """Jeffreys interval of a success rate: Beta(s + ½, n - s + ½). Nothing seen says nothing: (0, 1).

    `successes` may be fractional (a sum of scores) and is clamped to [0, count].
    """
    if count <= 0:
        return Interval(0.0, 1.0, level)
    s = min(max(float(successes), 0.0), float(count))
    tail = (1.0 - level) / 2.0
    low, high = stats.beta.ppf([tail, 1.0 - tail], s + 0.5, count - s + 0.5)
    return Interval(float(low), float(high), level)


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Exact two-sided McNemar p-value for paired success flags: only tasks that differ speak."""
    if len(first) != len(second):
        raise ValueError("paired tests need the same tasks on both sides")
    gained = sum(b and not a for a, b in zip(first, second, strict=True))
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    if gained + lost == 0:
        return 1.0
    return float(stats.binomtest(gained, gained + lost, 0.5).pvalue)


def paired_difference(
    first: Sequence[float], second: Sequence[float], level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> tuple[float, Interval]:
    """Mean of second - first over the same tasks, with a bootstrap interval over tasks."""
    if len(first) != len(second):
        raise ValueError("paired differences need the same tasks on both sides")
    difference = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    if len(difference) == 0:
        return math.nan, Interval(-math.inf, math.inf, level)
    mean = float(difference.mean())
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(difference), size=(draws, len(difference)))
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(difference[picks].mean(axis=1), [tail, 1.0 - tail])
    return mean, Interval(float(low), float(high), level)
