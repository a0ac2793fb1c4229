"""The slope of a short series with its confidence interval, and how often the series reverses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special, stats

TREND_LEVEL = 0.99
"""Confidence of every interval here. A series is tested again after each step, so 95 % would raise false alarms."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A least-squares slope per step and the limits of its confidence interval."""

    slope: float
    low: float
    high: float


def trend(steps: Sequence[float], values: Sequence[float], level: float = TREND_LEVEL) -> Trend | None:
    """Fit a straight line; None for fewer than three points or a single step, which leave no residual to judge by."""
    if len(values) < 3 or len(set(steps)) < 2:
        return None
    fit = stats.linregress(steps, values)
    margin = float(special.stdtrit(len(values) - 2, 0.5 + level / 2)) * float(fit.stderr)
    return Trend(float(fit.slope), float(fit.slope) - margin, float(fit.slope) + margin)


def reversals(values: Sequence[float], size: float) -> int:
    """How often the series turns back by at least `size` from its last high or low.

    A steady rise has no reversal however steep it is, and noise smaller than `size` has none however long it lasts.
    """
    if not values:
        return 0
    high = low = values[0]
    direction, count = 0, 0
    for value in values[1:]:
        high, low = max(high, value), min(low, value)
        if direction >= 0 and value <= high - size:
            count += direction > 0
            direction, low = -1, value
        elif direction <= 0 and value >= low + size:
            count += direction < 0
            direction, high = 1, value
    return count
