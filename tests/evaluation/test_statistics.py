"""Golden values of specs A.15 and of scipy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from practicum.evaluation.statistics import jeffreys, mcnemar, paired_difference


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        (0, 10, 0.000770, 0.123574),
        (10, 10, 0.876426, 0.999230),
        (8, 10, 0.605170, 0.916385),
        (5, 10, 0.309892, 0.690108),
        (120, 200, 0.555037, 0.643541),
        (0, 200, 0.000039, 0.006733),
        (1, 1, 0.351357, 0.993819),
    ],
)
def test_jeffreys_golden(successes: int, count: int, low: float, high: float) -> None:
    interval = jeffreys(successes, count, 0.80)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-6)


def test_nothing_seen_says_nothing() -> None:
    assert (jeffreys(0, 0).low, jeffreys(0, 0).high) == (0.0, 1.0)


def test_scores_outside_are_clamped() -> None:
    assert jeffreys(12.5, 10, 0.8) == jeffreys(10, 10, 0.8)


def test_mcnemar_equals_the_binomial_test() -> None:
    first = [True] * 3 + [False] * 12 + [True] * 20
    second = [False] * 3 + [True] * 12 + [True] * 20
    assert mcnemar(first, second) == pytest.approx(stats.binomtest(12, 15, 0.5).pvalue, abs=1e-12)


def test_mcnemar_without_a_difference() -> None:
    assert mcnemar([True, False], [True, False]) == 1.0


def test_paired_difference_covers_the_mean() -> None:
    mean, interval = paired_difference([0, 0, 1, 0] * 25, [1, 0, 1, 1] * 25)
    assert mean == 0.5
    assert 0.38 < interval.low < 0.5 < interval.high < 0.62


def test_paired_difference_of_nothing() -> None:
    mean, interval = paired_difference([], [])
    assert math.isnan(mean)
    assert interval.low == -math.inf


def test_pairs_must_match() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        mcnemar([True], [])
