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

from practicum.evaluation.stats.intervals import (
    Interval,
    bootstrap_mean,
    clustered_mean,
    fraction_interval,
    jeffreys,
    paired_difference,
    paired_rate_interval,
    pass_at,
    rate_interval,
)

RNG = np.random.default_rng(7)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        (0, 10, 0.000770, 0.123574),
        (10, 10, 0.876426, 0.999230),
        (8, 10, 0.605170, 0.916385),
        (5, 10, 0.309892, 0.690108),
        (100, 200, 0.454839, 0.545161),
        (120, 200, 0.555037, 0.643541),
        (0, 200, 0.000039, 0.006733),
        (200, 200, 0.993267, 0.999961),
        (1, 1, 0.351357, 0.993819),
    ],
)
def test_jeffreys_golden(successes: int, count: int, low: float, high: float) -> None:
    interval = jeffreys(successes, count)
    assert interval.level == 0.80
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.999])
@pytest.mark.parametrize(("successes", "count"), [(0, 7), (3, 7), (7, 7), (2.5, 9), (311, 1000)])
def test_jeffreys_is_statsmodels(successes: float, count: int, level: float) -> None:
    theirs = proportion_confint(successes, count, 1 - level, "jeffreys")
    ours = jeffreys(successes, count, level)
    assert (ours.low, ours.high) == pytest.approx(theirs, abs=1e-9)


def test_nothing_seen_says_nothing() -> None:
    assert jeffreys(0, 0) == Interval(0.0, 1.0, 0.80)
    assert jeffreys(math.nan, 4) == Interval(0.0, 1.0, 0.80)
    assert rate_interval([], []) == Interval(0.0, 1.0, 0.80)
    assert clustered_mean([], []).interval == Interval(-math.inf, math.inf, 0.80)
    assert bootstrap_mean([]) == Interval(-math.inf, math.inf, 0.80)
    assert paired_rate_interval(0, 0, 0) == Interval(-1.0, 1.0, 0.95)


def test_scores_outside_are_clamped() -> None:
    assert jeffreys(12.5, 10) == jeffreys(10, 10)
    assert jeffreys(-1, 10) == jeffreys(0, 10)


@pytest.mark.parametrize("level", [0, 1, -0.1, 95])
def test_a_level_is_a_share(level: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        jeffreys(1, 2, level)


def test_clustered_mean_is_statsmodels() -> None:
    sizes = RNG.integers(1, 7, 23)
    clusters = np.repeat(np.arange(23), sizes)
    values = RNG.normal(size=len(clusters)) + RNG.normal(size=23)[clusters]
    fit = sm.OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds={"groups": clusters}, use_t=True)
    ours = clustered_mean(values.tolist(), clusters.tolist(), 0.9)
    low, high = fit.conf_int(alpha=0.1)[0]
    assert ours.mean == pytest.approx(fit.params[0], abs=1e-12)
    assert ours.error == pytest.approx(fit.bse[0], abs=1e-9)
    assert (ours.interval.low, ours.interval.high) == pytest.approx((low, high), abs=1e-9)


def test_clusters_of_one_are_the_t_interval() -> None:
    values = RNG.normal(size=12)
    theirs = stats.ttest_1samp(values, 0).confidence_interval(0.8)
    ours = clustered_mean(values.tolist(), range(12)).interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_one_cluster_says_nothing_of_others() -> None:
    estimate = clustered_mean([0.0, 1.0, 1.0], ["a", "a", "a"])
    assert estimate.mean == pytest.approx(2 / 3)
    assert estimate.interval == Interval(-math.inf, math.inf, 0.80)


def test_rate_interval_lies_between_its_two_ends() -> None:
    alike = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0] * 10  # three attempts at each of twenty tasks, always the same
    tasks = [number // 3 for number in range(60)]
    assert rate_interval(alike, tasks) == jeffreys(10, 20)
    mixed = [1.0, 0.0] * 30  # two attempts at each of thirty tasks, one of them a success: tasks do not differ at all
    assert rate_interval(mixed, [number // 2 for number in range(60)]) == jeffreys(30, 60)
    between = rate_interval([*alike[:30], *mixed[:30]], [*tasks[:30], *(100 + n // 2 for n in range(30))])
    narrow, wide = jeffreys(30, 60), jeffreys(12.5, 25)
    assert wide.low < between.low < narrow.low
    assert narrow.high < between.high < wide.high


def test_fractions_are_surer_than_yes_and_no() -> None:
    fractions = [0.4, 0.5, 0.6, 0.5] * 5
    found, plain = fraction_interval(fractions, range(20)), jeffreys(10, 20)
    assert plain.low < found.low < 0.5 < found.high < plain.high
    error = np.std(fractions, ddof=1) / math.sqrt(20)
    half = stats.t.ppf(0.9, 19) * error
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-3)


@pytest.mark.parametrize("values", [[], [0.5], [0.5] * 6, [1.0] * 6, [0.0] * 6, [1.0, 0.0, 1.0]])
def test_fractions_without_spread_or_that_are_whole_are_taken_as_counts(values: list[float]) -> None:
    assert fraction_interval(values, range(len(values))) == rate_interval(values, range(len(values)))


def test_rate_interval_without_repeats_is_jeffreys_and_constants_keep_a_width() -> None:
    assert rate_interval([1, 0, 0.5], [1, 2, 3]) == jeffreys(1.5, 3)
    assert rate_interval([1.0] * 8, [1, 1, 2, 2, 3, 3, 4, 4]) == jeffreys(4, 4)
    assert rate_interval([1.0, 0.0], ["one", "one"]) == jeffreys(0.5, 1)


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


def test_bootstrap_mean_is_close_to_scipy() -> None:
    values = RNG.exponential(size=60)
    theirs = stats.bootstrap((values,), np.mean, confidence_level=0.8, method="percentile", n_resamples=20_000,
                             rng=np.random.default_rng(1)).confidence_interval  # fmt: skip
    ours = bootstrap_mean(values.tolist(), level=0.8, draws=20_000)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)
    assert ours == bootstrap_mean(values.tolist(), level=0.8, draws=20_000)
    assert ours != bootstrap_mean(values.tolist(), level=0.8, draws=20_000, seed=1)


def test_bootstrap_limits_are_the_exact_ones_of_three_values() -> None:
    """All 27 samples of three values are equally likely: the limits are quantiles of the 27 means."""
    values = [0.0, 1.0, 5.0]
    means = [sum(sample) / 3 for sample in itertools.product(values, repeat=3)]
    interval = bootstrap_mean(values, level=0.6, draws=100_000)
    exact = np.quantile(means, [0.2, 0.8], method="inverted_cdf")
    assert (interval.low, interval.high) == pytest.approx(exact, abs=1e-9)


def test_bootstrap_draws_whole_clusters() -> None:
    values, clusters = [0.0] * 10 + [1.0] * 10, [0] * 10 + [1] * 10
    assert bootstrap_mean(values, clusters) == Interval(0.0, 1.0, 0.80)
    assert bootstrap_mean(values).low > 0.3


def test_paired_difference_covers_the_mean() -> None:
    mean, interval = paired_difference([0, 0, 1, 0] * 25, [1, 0, 1, 1] * 25)
    assert mean == 0.5
    assert 0.38 < interval.low < 0.5 < interval.high < 0.62


def test_paired_difference_of_nothing_and_of_one() -> None:
    mean, interval = paired_difference([], [])
    assert math.isnan(mean)
    assert interval.low == -math.inf
    assert paired_difference([0.25], [1.0]) == (0.75, Interval(0.75, 0.75, 0.95))


def test_pairs_must_match() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        paired_difference([1.0], [])


def test_pass_at_k_counts_the_choices() -> None:
    """By listing every choice of k attempts."""
    for attempts, successes in [(1, 0), (1, 1), (5, 2), (8, 8), (8, 1), (10, 7)]:
        flags = [number < successes for number in range(attempts)]
        for k in range(1, attempts + 1):
            chosen = [any(choice) for choice in itertools.combinations(flags, k)]
            assert pass_at(k, successes, attempts) == pytest.approx(sum(chosen) / len(chosen), abs=1e-12)
    with pytest.raises(ValueError, match="at least 3 attempts"):
        pass_at(3, 1, 2)


def test_an_interval_knows_whether_it_holds_zero() -> None:
    assert Interval(0.1, 0.2, 0.8).clear_of_zero
    assert Interval(-0.2, -0.1, 0.8).clear_of_zero
    assert not Interval(0.0, 0.2, 0.8).clear_of_zero
    assert not Interval(-0.1, 0.2, 0.8).clear_of_zero
