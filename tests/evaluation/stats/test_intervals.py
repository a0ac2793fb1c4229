"""Golden values of specs A.15, and agreement with scipy and statsmodels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.contingency_tables import SquareTable
from statsmodels.stats.proportion import proportion_confint

from practicum.evaluation.stats.differences import bounded_difference
from practicum.evaluation.stats.intervals import (
    Interval,
    clustered_mean,
    jeffreys,
    paired_rate_interval,
    pass_at,
    rate_interval,
)

RNG = np.random.default_rng(7)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        (8, 10, 0.605170, 0.916385),
        (5, 10, 0.309892, 0.690108),
        (100, 200, 0.454839, 0.545161),
        (120, 200, 0.555037, 0.643541),
    ],
)
def test_jeffreys_golden(successes: int, count: int, low: float, high: float) -> None:
    interval = jeffreys(successes, count, 0.80)
    assert interval.level == 0.80
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-6)
    assert jeffreys(successes, count).level == 0.95


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.999])
@pytest.mark.parametrize(("successes", "count"), [(2, 7), (3, 7), (5, 7), (2.5, 9), (311, 1000)])
def test_jeffreys_is_statsmodels_away_from_the_ends(successes: float, count: int, level: float) -> None:
    expected = proportion_confint(successes, count, 1 - level, "jeffreys")
    result = jeffreys(successes, count, level)
    assert (result.low, result.high) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("count", [1, 2, 10, 300])
def test_jeffreys_at_the_ends_is_brown_cai_and_dasguptas(count: int, level: float) -> None:
    """None of n: from 0 to the exact limit; one of n: from 0 to the Jeffreys limit."""
    exact = proportion_confint(0, count, 1 - level, "beta")
    none, all_of = jeffreys(0, count, level), jeffreys(count, count, level)
    assert (none.low, none.high) == pytest.approx((0.0, exact[1]), abs=1e-12)
    assert (all_of.low, all_of.high) == pytest.approx((1 - exact[1], 1.0), abs=1e-12)
    if count > 2:
        plain = proportion_confint(1, count, 1 - level, "jeffreys")
        interval, all_but_one = jeffreys(1, count, level), jeffreys(count - 1, count, level)
        assert (interval.low, interval.high) == pytest.approx((0.0, plain[1]), abs=1e-9)
        assert (all_but_one.low, all_but_one.high) == pytest.approx((1 - plain[1], 1.0), abs=1e-9)
    limits = [jeffreys(s, count, level) for s in np.linspace(0, count, 41)]  # sums of fractions lie between
    assert all(a.low <= b.low + 1e-12 and a.high <= b.high + 1e-12 for a, b in itertools.pairwise(limits))


def test_nothing_seen_says_nothing() -> None:
    assert jeffreys(0, 0) == Interval(0.0, 1.0, 0.95)
    assert jeffreys(math.nan, 4) == Interval(0.0, 1.0, 0.95)
    assert rate_interval([], []) == Interval(0.0, 1.0, 0.95)
    assert clustered_mean([], []).interval == Interval(-math.inf, math.inf, 0.95)
    assert paired_rate_interval(0, 0, 0) == Interval(-1.0, 1.0, 0.95)
    assert bounded_difference([], []).interval == Interval(-1.0, 1.0, 0.95)


def test_scores_outside_are_clamped() -> None:
    assert jeffreys(12.5, 10) == jeffreys(10, 10)
    assert jeffreys(-1, 10) == jeffreys(0, 10)


@pytest.mark.parametrize("level", [0, 1, -0.1, 95])
def test_a_level_is_a_share(level: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        jeffreys(1, 2, level)


def test_clustered_mean_is_statsmodels_for_clusters_of_one_size() -> None:
    clusters = np.repeat(np.arange(23), 4)
    values = RNG.normal(size=len(clusters)) + RNG.normal(size=23)[clusters]
    fit = sm.OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds={"groups": clusters}, use_t=True)
    result = clustered_mean(values.tolist(), clusters.tolist(), 0.9)
    low, high = fit.conf_int(alpha=0.1)[0]
    scale = math.sqrt(91 / 92)  # statsmodels also corrects for the one parameter among all values
    assert result.mean == pytest.approx(fit.params[0], abs=1e-12)
    assert result.error == pytest.approx(fit.bse[0] * (scale if result.error < fit.bse[0] - 1e-9 else 1), abs=1e-9)
    assert (result.interval.low, result.interval.high) == pytest.approx((low, high), abs=2e-3)


def test_clustered_error_is_the_jackknife_over_clusters() -> None:
    sizes = RNG.integers(1, 9, 11)
    clusters = np.repeat(np.arange(11), sizes)
    values = RNG.normal(size=len(clusters)) + RNG.normal(size=11)[clusters]
    without = np.array([values[clusters != interval].mean() for interval in range(11)])
    result = clustered_mean(values.tolist(), clusters.tolist())
    jackknife = math.sqrt(10 / 11 * ((without - values.mean()) ** 2).sum())
    assert result.error == pytest.approx(jackknife, abs=1e-12)
    assert result.effective_clusters == pytest.approx(sizes.sum() ** 2 / (sizes**2).sum())


def test_clusters_of_one_are_the_t_interval() -> None:
    values = RNG.normal(size=12)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    result = clustered_mean(values.tolist(), range(12)).interval
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_one_cluster_says_nothing_of_others() -> None:
    estimate = clustered_mean([0.0, 1.0, 1.0], ["a", "a", "a"])
    assert estimate.mean == pytest.approx(2 / 3)
    assert estimate.interval == Interval(-math.inf, math.inf, 0.95)


def test_rate_interval_lies_between_its_two_ends() -> None:
    equal = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0] * 10  # three attempts at each of twenty tasks, always the same
    tasks = [number // 3 for number in range(60)]
    assert rate_interval(equal, tasks) == jeffreys(10, 20)
    mixed = [1.0, 0.0] * 30  # two attempts at each of thirty tasks, one of them a success: tasks do not differ at all
    assert rate_interval(mixed, [number // 2 for number in range(60)]) == jeffreys(30, 60)
    between = rate_interval([*equal[:30], *mixed[:30]], [*tasks[:30], *(100 + n // 2 for n in range(30))])
    narrow, wide = jeffreys(30, 60), jeffreys(12.5, 25)
    assert wide.low < between.low < narrow.low
    assert narrow.high < between.high < wide.high


def test_fractions_are_surer_than_yes_and_no() -> None:
    fractions = [0.4, 0.5, 0.6, 0.5] * 5
    result, plain = rate_interval(fractions, range(20), 0.8), jeffreys(10, 20, 0.8)
    assert plain.low < result.low < 0.5 < result.high < plain.high
    error = np.std(fractions, ddof=1) / math.sqrt(20)
    half = stats.t.ppf(0.9, 19) * error
    assert (result.low, result.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-3)


def test_few_tasks_with_many_attempts_are_widened_as_students_t_is() -> None:
    """20 tasks of 8 attempts: the old interval had the normal quantile and covered 89 to 91 % at 95."""
    rng = np.random.default_rng(0)
    own = rng.beta(1, 1, 20)
    flags = (rng.random((20, 8)) < own[:, None]).astype(float).ravel().tolist()
    tasks = [number // 8 for number in range(160)]
    result, estimate = rate_interval(flags, tasks), clustered_mean(flags, tasks)
    half = (result.high - result.low) / 2
    assert half == pytest.approx(stats.t.ppf(0.975, 19) * estimate.error, rel=0.04)


def test_rate_interval_without_repeats_is_jeffreys_and_constants_keep_a_width() -> None:
    assert rate_interval([1, 0, 1], [1, 2, 3]) == jeffreys(2, 3)
    assert rate_interval([1.0] * 8, [1, 1, 2, 2, 3, 3, 4, 4]) == jeffreys(4, 4)
    assert rate_interval([1.0, 0.0], ["one", "one"]) == jeffreys(0.5, 1)
    assert rate_interval([0.5] * 6, range(6)) == jeffreys(3, 6)


def test_graded_differences_without_flags_are_the_t_interval() -> None:
    differences = RNG.uniform(-0.2, 0.4, 30).tolist()
    result = bounded_difference(differences, range(30), share=0.0)
    expected = stats.ttest_1samp(differences, 0)
    limits = expected.confidence_interval(0.95)
    assert (result.interval.low, result.interval.high) == pytest.approx((limits.low, limits.high), abs=1e-9)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-5)


def test_flags_of_independent_tasks_are_bonett_and_prices_interval() -> None:
    differences = [1.0] * 9 + [-1.0] * 3 + [0.0] * 28
    result = bounded_difference(differences, range(40))
    expected = paired_rate_interval(9, 3, 40)
    assert (result.interval.low, result.interval.high) == pytest.approx((expected.low, expected.high), abs=3e-3)
    at_p = bounded_difference(differences, range(40), 1 - result.p_value).interval
    assert at_p.low == pytest.approx(0.0, abs=1e-6)  # the level at which it just touches 0


def test_twenty_failures_against_graded_scores_are_no_certainty() -> None:
    """A policy that succeeds once in ten fails twenty times in one of eight evaluations."""
    result = bounded_difference([-0.1, -0.12, -0.08, -0.1] * 5, range(20))
    assert result.interval.low < 0 < result.interval.high


def test_paired_rates_by_hand() -> None:
    """12 gained, 3 lost of 50, at the level where z = 2: (13 - 4) / 52 ± 2 sqrt((17/52 - (9/52)²) / 52)."""
    interval = paired_rate_interval(12, 3, 50, float(2 * stats.norm.cdf(2) - 1))
    margin = 2 * math.sqrt((17 / 52 - (9 / 52) ** 2) / 52)
    assert (interval.low, interval.high) == pytest.approx((9 / 52 - margin, 9 / 52 + margin), abs=1e-12)


def test_paired_rates_come_near_the_plain_ones_in_large_samples() -> None:
    table = np.array([[4000, 300], [500, 5200]])  # rows: first succeeded or not; columns: second
    gain = (table[1, 0] - table[0, 1]) / table.sum()
    plain = math.sqrt((800 / 10000) - gain**2) / 100
    interval = paired_rate_interval(500, 300, 10_000, 0.95)
    assert (interval.low, interval.high) == pytest.approx((gain - 1.96 * plain, gain + 1.96 * plain), abs=1e-4)
    assert SquareTable(table, shift_zeros=False).homogeneity().pvalue < 0.05  # and that difference is no luck


def test_paired_rates_of_constants_keep_a_width() -> None:
    all_gained, none = paired_rate_interval(5, 0, 5), paired_rate_interval(0, 0, 5)
    assert 0.1 < all_gained.low < all_gained.high <= 1.0
    assert none.low < 0 < none.high


def test_pass_at_k_counts_the_choices() -> None:
    """By listing every choice of k attempts."""
    for attempts, successes in [(1, 0), (1, 1), (5, 2), (8, 8), (8, 1), (10, 7)]:
        flags = [number < successes for number in range(attempts)]
        for k in range(1, attempts + 1):
            chosen = [any(choice) for choice in itertools.combinations(flags, k)]
            assert pass_at(k, successes, attempts) == pytest.approx(sum(chosen) / len(chosen), abs=1e-12)
    with pytest.raises(ValueError, match="at least 3 attempts"):
        pass_at(3, 1, 2)
