"""Two samples that are not paired: Student's t-test as founding paper 000 prints it, and sizes of effects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special


@dataclass(frozen=True, slots=True)
class TTest:
    """A t-statistic with its two-sided p-value. `note` says why where the formula has no value."""

    statistic: float
    p_value: float
    degrees: int
    note: str = ""

    @property
    def sentence(self) -> str:
        """The paper's line, with what it leaves out."""
        line = f"t-statistic: {self.statistic:.3f}, p-value: {self.p_value:.4f}"
        return f"{line} ({self.note})" if self.note else line


def t_test(first: Sequence[float], second: Sequence[float]) -> TTest:
    """t = (mean 1 - mean 2) / sqrt(pooled variance × (1/n1 + 1/n2)): equal variances, and every score independent."""
    n, m = len(first), len(second)
    degrees = n + m - 2
    if n == 0 or m == 0 or degrees < 1:
        return TTest(math.nan, 1.0, max(0, degrees), "too few scores for a t-test")
    apart = _mean(first) - _mean(second)
    pooled = (_squares(first) + _squares(second)) / degrees
    if pooled == 0:
        if apart == 0:
            return TTest(0.0, 1.0, degrees, "both samples are the same constant")
        return TTest(math.copysign(math.inf, apart), 0.0, degrees, "both samples are constant")
    statistic = apart / math.sqrt(pooled * (1 / n + 1 / m))
    return TTest(statistic, float(2 * special.stdtr(degrees, -abs(statistic))), degrees)


def cohens_d(first: Sequence[float], second: Sequence[float]) -> float | None:
    """(mean 2 - mean 1) in pooled standard deviations; None where there is no spread to measure by."""
    degrees = len(first) + len(second) - 2
    if not first or not second or degrees < 1:
        return None
    apart = _mean(second) - _mean(first)
    pooled = math.sqrt((_squares(first) + _squares(second)) / degrees)
    if pooled == 0:
        return 0.0 if apart == 0 else None
    return apart / pooled


def hedges_g(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Cohen's d without its upward bias in small samples (the exact factor, by gamma functions)."""
    d, degrees = cohens_d(first, second), len(first) + len(second) - 2
    if d is None or degrees < 2:
        return None
    factor = math.exp(math.lgamma(degrees / 2) - math.lgamma((degrees - 1) / 2)) / math.sqrt(degrees / 2)
    return d * factor


def cohens_h(first: float, second: float) -> float:
    """The distance of two rates on the arcsine scale: .2 is small, .5 middling, .8 large."""
    return 2 * math.asin(math.sqrt(_share(second))) - 2 * math.asin(math.sqrt(_share(first)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))
