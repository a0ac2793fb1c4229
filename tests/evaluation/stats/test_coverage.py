"""By simulation, 10,000 draws: 80 % intervals cover 78 to 82 %, 5 % tests reject 4 to 6 % where nothing differs.

Counts are whole, so no interval of a rate and no exact test of one can hit its level at every rate and every count.
How far Jeffreys is off at single rates is computed exactly, not sampled; the simulations draw rates from its prior, or
take counts and rates at which it is known to hold. McNemar's exact test rejects too seldom with few tasks.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy import stats

from practicum.evaluation.stats.intervals import (
    bootstrap,
    clustered_mean,
    fraction_interval,
    jeffreys,
    paired_rate_interval,
    rate_interval,
)
from practicum.evaluation.stats.paired import bootstrap_test, mcnemar, permutation_test, wilcoxon
from practicum.evaluation.stats.unpaired import t_test

DRAWS = 10_000


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20_240)


def covers(share: float) -> None:
    assert 0.78 <= share <= 0.82


def rejects(share: float) -> None:
    assert 0.04 <= share <= 0.06


@pytest.mark.parametrize("count", [1, 10, 50, 200])
def test_jeffreys_over_its_prior(count: int, rng: np.random.Generator) -> None:
    rates = rng.beta(0.5, 0.5, DRAWS)
    limits = [jeffreys(s, count) for s in range(count + 1)]
    seen = rng.binomial(count, rates)
    covers(np.mean([limits[s].low <= p <= limits[s].high for s, p in zip(seen, rates, strict=True)]))


def exact_coverage(count: int, rates: np.ndarray) -> np.ndarray:
    """The chance that the interval holds the rate, summed over all counts that may be seen."""
    limits = [jeffreys(s, count) for s in range(count + 1)]
    low, high = (np.array([getattr(interval, end) for interval in limits]) for end in ("low", "high"))
    held = (low[:, None] <= rates) & (rates <= high[:, None])
    return (stats.binom.pmf(np.arange(count + 1)[:, None], count, rates) * held).sum(axis=0)


RATES = np.linspace(0.1, 0.9, 161)


@pytest.mark.parametrize("count", [20, 50, 100, 200, 300, 500, 1000])
def test_jeffreys_covers_its_level_over_the_rates(count: int) -> None:
    assert exact_coverage(count, RATES).mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(
    ("count", "least", "most"), [(50, 0.743, 0.851), (100, 0.758, 0.837), (200, 0.769, 0.830), (300, 0.775, 0.820)]
)
def test_jeffreys_at_single_rates_is_off_by_so_much_with_few_tasks(count: int, least: float, most: float) -> None:
    """Outside 78 to 82 %, as every interval made of whole counts is; docs/evaluation.md gives these figures."""
    found = exact_coverage(count, RATES)
    assert least <= found.min() < 0.78
    assert found.max() <= most


@pytest.mark.parametrize("count", [500, 1000])
def test_jeffreys_at_every_single_rate_with_many_tasks(count: int) -> None:
    found = exact_coverage(count, RATES)
    assert found.min() >= 0.78
    assert found.max() <= 0.82


@pytest.mark.parametrize(("count", "rate"), [(200, 0.3), (400, 0.1), (500, 0.5), (1000, 0.85)])
def test_jeffreys_at_one_rate(count: int, rate: float, rng: np.random.Generator) -> None:
    """The sum over counts and the simulation agree, and these cases lie inside."""
    limits = [jeffreys(s, count) for s in range(count + 1)]
    share = np.mean([limits[s].low <= rate <= limits[s].high for s in rng.binomial(count, rate, DRAWS)])
    covers(share)
    assert share == pytest.approx(exact_coverage(count, np.array([rate]))[0], abs=0.015)


@pytest.mark.parametrize(
    ("a", "b", "tasks", "each"), [(2, 3, 60, 1), (0.5, 0.5, 60, 1), (8, 2, 40, 1), (2, 3, 10, 1), (2, 3, 40, 4)]
)
def test_means_of_fractional_scores(a: float, b: float, tasks: int, each: int, rng: np.random.Generator) -> None:
    """Scores between 0 and 1, of which one yes-or-no count each would cover 93 to 100 %."""
    mean = a / (a + b)
    scores = rng.beta(a, b, (DRAWS, tasks, each))
    if each > 1:  # attempts at a task are alike
        scores = (scores + rng.beta(a, b, (DRAWS, tasks, 1))) / 2
    clusters = [number // each for number in range(tasks * each)]
    intervals = [fraction_interval(row, clusters) for row in scores.reshape(DRAWS, -1).tolist()]
    covers(np.mean([i.low <= mean <= i.high for i in intervals]))


@pytest.mark.parametrize("spread", [0.5, 2.0, 20.0])
def test_rates_over_attempts_of_tasks(spread: float, rng: np.random.Generator) -> None:
    """80 tasks of different difficulty, 4 attempts each: tasks that differ much, some, hardly."""
    tasks, each, rate = 80, 4, 0.4
    difficulty = rng.beta(spread * rate, spread * (1 - rate), (DRAWS, tasks))
    scores = rng.binomial(1, difficulty[:, :, None], (DRAWS, tasks, each)).reshape(DRAWS, -1)
    clusters = [number // each for number in range(tasks * each)]
    intervals = [rate_interval(row, clusters) for row in scores]
    covers(np.mean([i.low <= rate <= i.high for i in intervals]))


def test_counting_attempts_as_independent_would_not_cover(rng: np.random.Generator) -> None:
    difficulty = rng.beta(0.2, 0.3, (DRAWS, 80))
    totals = rng.binomial(4, difficulty).sum(axis=1)
    limits = [jeffreys(s, 320) for s in range(321)]
    assert np.mean([limits[s].low <= 0.4 <= limits[s].high for s in totals]) < 0.6


def test_clustered_mean(rng: np.random.Generator) -> None:
    clusters = np.repeat(np.arange(20), 5)
    values = rng.normal(1.0, 1.0, (DRAWS, 100)) + rng.normal(0, 1.0, (DRAWS, 20))[:, clusters]
    names = clusters.tolist()
    intervals = [clustered_mean(row, names).interval for row in values]
    covers(np.mean([i.low <= 1.0 <= i.high for i in intervals]))


def test_bootstrap_of_a_skewed_mean(rng: np.random.Generator) -> None:
    values = rng.exponential(1.0, (DRAWS, 100))
    low, high = bootstrap(values, level=0.8, draws=500)
    covers(float(np.mean((low <= 1.0) & (high >= 1.0))))


def test_bootstrap_over_tasks_with_several_attempts(rng: np.random.Generator) -> None:
    """Whole tasks are drawn: 60 of them, 3 attempts each."""
    totals = 3 * rng.normal(1.0, 1.0, (DRAWS, 60)) + rng.normal(0, 1.0, (DRAWS, 60, 3)).sum(axis=2)
    low, high = bootstrap(totals, np.full(60, 3), level=0.8, draws=500)
    covers(float(np.mean((low <= 1.0) & (high >= 1.0))))


@pytest.mark.parametrize(("up", "down", "count"), [(0.15, 0.05, 100), (0.1, 0.1, 200), (0.3, 0.05, 300)])
def test_paired_rates(up: float, down: float, count: int, rng: np.random.Generator) -> None:
    table = rng.multinomial(count, [up, down, 1 - up - down], DRAWS)
    interval = functools.cache(lambda gained, lost: paired_rate_interval(gained, lost, count, 0.8))
    found = [interval(int(gained), int(lost)) for gained, lost, _ in table]
    covers(np.mean([i.low <= up - down <= i.high for i in found]))


def pairs(rng: np.random.Generator, differing: float, count: int) -> np.ndarray:
    return rng.multinomial(count, [differing / 2, differing / 2, 1 - differing], DRAWS)[:, :2]


def test_mcnemar_rejects_at_its_level_with_many_tasks_and_too_seldom_with_few(rng: np.random.Generator) -> None:
    test = functools.cache(mcnemar)
    rejects(np.mean([test(int(g), int(lost)) < 0.05 for g, lost in pairs(rng, 0.3, 4000)]))
    assert np.mean([test(int(g), int(lost)) < 0.05 for g, lost in pairs(rng, 0.4, 100)]) < 0.04


def test_permutation_test(rng: np.random.Generator) -> None:
    """Skewed scores, which an exchange of the policies makes symmetric."""
    first, second = rng.exponential(size=(2, DRAWS, 30))
    rejects(float(np.mean(permutation_test(second - first, draws=999) < 0.05)))


def test_permutation_test_of_means_over_attempts(rng: np.random.Generator) -> None:
    """Twelve attempts a task; with four, sums are so coarse that the test rejects less than it may (3.9 %)."""
    difficulty = rng.beta(1, 1, (DRAWS, 120))
    first, second = rng.binomial(12, difficulty) / 12, rng.binomial(12, difficulty) / 12
    rejects(float(np.mean(permutation_test(second - first, draws=999) < 0.05)))


def test_bootstrap_test(rng: np.random.Generator) -> None:
    rejects(float(np.mean(bootstrap_test(rng.normal(0, 1, (DRAWS, 100)), draws=500) < 0.05)))


def test_wilcoxon(rng: np.random.Generator) -> None:
    rejects(float(np.mean(wilcoxon(rng.laplace(0, 1, (DRAWS, 40))) < 0.05)))


def test_two_sample_t_of_success_flags(rng: np.random.Generator) -> None:
    """scipy's test in one call; `t_test` is the same for each row."""
    first, second = (rng.random((2, DRAWS, 100)) < 0.75).astype(float)
    p_values = stats.ttest_ind(first, second, axis=1).pvalue
    rejects(float(np.mean(p_values < 0.05)))
    for row in range(20):
        assert t_test(first[row].tolist(), second[row].tolist()).p_value == pytest.approx(p_values[row], abs=1e-12)


def test_two_sample_t_on_paired_tasks_rejects_too_seldom(rng: np.random.Generator) -> None:
    """Why `compare` pairs: where tasks differ in difficulty, HTDAG's test hardly ever rejects."""
    difficulty = rng.beta(0.3, 0.3, (2000, 100))
    first, second = (rng.random((2, 2000, 100)) < difficulty).astype(float)
    assert np.mean(stats.ttest_ind(first, second, axis=1).pvalue < 0.05) < 0.03
