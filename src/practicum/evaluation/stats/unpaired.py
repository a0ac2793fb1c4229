"""Two samples that are not paired: Student's t-test as HTDAG prints it, and effect sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats


@dataclass(frozen=True, slots=True)
class TTest:
    """A t-statistic with its two-sided p-value. `note` says why where the formula has no value."""

    statistic: float
    p_value: float
    degrees: int
    note: str = ""

    @property
    def sentence(self) -> str:
        """HTDAG's line, with the name of the test and the note that it leaves out."""
        line = f"t-statistic: {self.statistic:.3f}, p-value: {self.p_value:.4f}"
        line = f"Two-sample t-test (unpaired): {line}"
        return f"{line} ({self.note})" if self.note else line


def t_test(first: Sequence[float], second: Sequence[float]) -> TTest:
    """Student's two-sample t-test: equal variances, and every score independent of the others."""
    degrees = len(first) + len(second) - 2
    if not first or not second or degrees < 1:
        return TTest(math.nan, 1.0, max(0, degrees), "too few scores for a t-test")
    if len(set(first)) == len(set(second)) == 1:
        if first[0] == second[0]:
            return TTest(0.0, 1.0, degrees, "both samples are the same constant")
        return TTest(math.copysign(math.inf, first[0] - second[0]), 0.0, degrees, "both samples are constant")
    # From the moments: `ttest_ind` itself warns of a sample that is constant, which success flags often are.
    result = stats.ttest_ind_from_stats(
        _mean(first), _deviation(first), len(first), _mean(second), _deviation(second), len(second)
    )
    return TTest(float(result.statistic), float(result.pvalue), degrees)


def cohens_d(first: Sequence[float], second: Sequence[float]) -> float | None:
    """(mean 2 - mean 1) in pooled standard deviations; None where there is no spread to measure by."""
    degrees = len(first) + len(second) - 2
    if not first or not second or degrees < 1:
        return None
    difference = _mean(second) - _mean(first)
    pooled = math.sqrt((_sum_of_squares(first) + _sum_of_squares(second)) / degrees)
    if pooled == 0:
        return 0.0 if difference == 0 else None
    return difference / pooled


def cohens_h(first: float, second: float) -> float:
    """The distance of two rates on the arcsine scale: 0.2 is small, 0.5 medium, 0.8 large."""
    return 2 * math.asin(math.sqrt(_clamped(second))) - 2 * math.asin(math.sqrt(_clamped(first)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _sum_of_squares(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _deviation(values: Sequence[float]) -> float:
    """The sample standard deviation; 0 of a single value."""
    return math.sqrt(_sum_of_squares(values) / max(1, len(values) - 1))


def _clamped(rate: float) -> float:
    return min(1.0, max(0.0, rate))
