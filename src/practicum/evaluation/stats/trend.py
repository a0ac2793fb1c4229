"""The slope of a short series with its confidence interval."""

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
