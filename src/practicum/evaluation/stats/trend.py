"""What a short series of numbers does: its slope with a confidence interval, and how often it turns back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

LEVEL = 0.99
"""Confidence of every interval here. A series is looked at again after each step, so 95 % would cry wolf."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A least-squares slope per step and the limits of its confidence interval."""

    slope: float
    low: float
    high: float


def trend(steps: Sequence[float], values: Sequence[float], level: float = LEVEL) -> Trend | None:
    """The straight line through the points; None where fewer than three leave nothing to judge it by."""
    count = len(values)
    middle, mean = math.fsum(steps) / max(1, count), math.fsum(values) / max(1, count)
    spread = math.fsum((step - middle) ** 2 for step in steps)
    if count < 3 or spread == 0:
        return None
    pairs = list(zip(steps, values, strict=True))
    slope = math.fsum((step - middle) * (value - mean) for step, value in pairs) / spread
    rest = math.fsum((value - mean - slope * (step - middle)) ** 2 for step, value in pairs)
    quantile = float(special.stdtrit(count - 2, 0.5 + level / 2))
    margin = quantile * math.sqrt(rest / (count - 2) / spread)
    return Trend(slope, slope - margin, slope + margin)


def reversals(values: Sequence[float], size: float) -> int:
    """How often the series turns back by at least `size` from its last high or low.

    A steady rise has none however steep it is, and noise smaller than `size` has none however long it lasts.
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
