"""Intervals cover 95 % and tests reject at most 5 % where nothing differs: exact sums, and simulations.

The default run draws few samples and allows for their error; the marker `slow` draws enough to see two points. Counts
are whole numbers, so no interval of a rate has its level at every single rate: docs/evaluation.md gives the figures.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from practicum.evaluation.stats.intervals import jeffreys
from practicum.evaluation.stats.paired import bootstrap_test, permutation_test, wilcoxon
from practicum.evaluation.stats.power import mcnemar_detectable, mcnemar_power
from tests.evaluation.stats import simulations
from tests.evaluation.stats.simulations import COVERAGE, LEVELS, LOOKS, PAIRED, UNPLANNED, Case

FEW, MANY = 100, 10_000
RATES = np.linspace(0.0, 1.0, 201)


def slack(share: float, draws: int) -> float:
    """Four standard errors of a simulated share."""
    return 4 * math.sqrt(share * (1 - share) / draws)


def named(cases: tuple[Case, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


@pytest.mark.parametrize("count", [20, 50, 100, 300])
def test_modified_jeffreys_covers_on_average_and_at_the_ends(count: int) -> None:
    """At rates 0 and 1 the plain interval never holds the rate that it is the interval of."""
    result = simulations.jeffreys_coverage(count, RATES)
    assert result.mean() == pytest.approx(0.95, abs=0.01)
    assert result.min() > 0.91
    assert result[0] == result[-1] == 1.0
    for successes in range(count + 1):
        interval = jeffreys(successes, count)
        assert interval.low <= successes / count <= interval.high
    at_80 = simulations.jeffreys_coverage(count, RATES[20:-20], 0.8)
    assert at_80.mean() == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("count", [20, 100])
def test_no_interval_of_a_rate_is_within_two_points_at_every_rate(count: int) -> None:
    """Why the mean over rates is held to two points: whole counts do not allow more, whatever the interval.

    The rate at which no success still has a chance of 97 % lies within every interval that contains its own estimate.
    """
    rates = np.append(RATES, 1 - 0.975 ** (1 / count))
    for name in simulations.RATE_INTERVALS:
        coverages = simulations.rate_coverage(name, count, rates)
        assert coverages[-1] > 0.97
        assert coverages.mean() == pytest.approx(0.95, abs=0.02 if name != "Clopper-Pearson" else 0.03)
    widths = [simulations.mean_width(name, count, RATES) for name in ("modified Jeffreys", "Agresti-Coull")]
    assert widths[0] < widths[1]


@pytest.mark.parametrize(("gain", "loss", "count"), [pair for pair in PAIRED if pair[2] <= 20])
def test_paired_differences_cover_at_few_tasks_and_at_the_ends(gain: float, loss: float, count: int) -> None:
    assert simulations.paired_coverage(gain, loss, count) >= 0.93


@named(COVERAGE)
def test_intervals_cover(case: Case) -> None:
    assert case.share(FEW) >= 0.93 - slack(0.95, FEW)


@named(LEVELS)
def test_tests_keep_their_level(case: Case) -> None:
    assert case.share(FEW) <= 0.06 + slack(0.05, FEW)


@named(LOOKS[1:3])
def test_planned_looks_keep_the_level_together(case: Case) -> None:
    assert case.share(200) <= 0.05 + slack(0.05, 200)


@pytest.mark.parametrize("count", [5, 8, 11, 16, 17, 20, 43, 50, 100, 300])
def test_mcnemar_keeps_its_level(count: int) -> None:
    """The mid-p test alone rejects 7.7 % of the time where every one of 16 tasks differs."""
    for differing in (0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0):
        assert simulations.mcnemar_level(differing, count) <= 0.05
        assert simulations.mcnemar_level(differing, count, 0.01) <= 0.0101


def test_mid_p_has_the_power_that_the_exact_test_wastes() -> None:
    """20 tasks, 40 % gained and 8 % lost: the exact test finds it in a third of the evaluations."""
    assert mcnemar_power(0.4, 0.08, 20) > 0.5


@pytest.mark.parametrize("count", [9, 10, 11, 20, 100])
def test_the_detectable_difference_is_found_in_four_of_five(count: int) -> None:
    """Formerly promised at 80 % and found at 52 to 58 % with eight to ten tasks."""
    assert simulations.detectable_power(count) == pytest.approx(0.8, abs=0.001)
    assert mcnemar_detectable(0.5 / (count + 1), count) <= 1


@pytest.mark.slow
@named(COVERAGE)
def test_intervals_cover_within_two_points(case: Case) -> None:
    """Below by two points at most; above only where successes are few, which whole counts do not allow to hit."""
    share = case.share(MANY)
    assert share >= 0.93
    assert share <= (0.97 if "10 %" not in case.name and "2 %" not in case.name and "5 %" not in case.name else 0.995)


@pytest.mark.slow
@named(LEVELS + LOOKS)
def test_false_findings_are_at_most_five_percent(case: Case) -> None:
    assert case.share(MANY) <= 0.055


@pytest.mark.slow
@named(UNPLANNED)
def test_unplanned_looks_find_what_is_not_there(case: Case) -> None:
    """Why looks have to be planned."""
    assert case.share(MANY) > 0.06


def test_other_tests_in_the_json_keep_their_level() -> None:
    rng = np.random.default_rng(20_240)
    draws = 2_000
    first, second = rng.exponential(size=(2, draws, 30))
    assert np.mean(permutation_test(second - first, draws=499) < 0.05) == pytest.approx(0.05, abs=0.02)
    assert np.mean(bootstrap_test(rng.normal(0, 1, (draws, 100)), draws=400) < 0.05) == pytest.approx(0.05, abs=0.02)
    assert np.mean(wilcoxon(rng.laplace(0, 1, (draws, 40))) < 0.05) == pytest.approx(0.05, abs=0.02)


def test_counting_attempts_as_independent_would_not_cover() -> None:
    rng = np.random.default_rng(1)
    totals = rng.binomial(4, rng.beta(0.2, 0.3, (2_000, 80))).sum(axis=1)
    limits = [jeffreys(s, 320) for s in range(321)]
    assert np.mean([limits[s].low <= 0.4 <= limits[s].high for s in totals]) < 0.8
