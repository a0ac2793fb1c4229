"""Power against statsmodels, and against trying it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from practicum.evaluation.stats.power import minimum_detectable, paired_power, tasks_needed


@pytest.mark.parametrize("alpha", [0.05, 0.2])
@pytest.mark.parametrize(("effect", "count"), [(0.1, 20), (0.5, 34), (0.8, 5), (0.0, 50), (0.05, 3000)])
def test_power_is_statsmodels(effect: float, count: int, alpha: float) -> None:
    assert paired_power(effect, count, alpha) == pytest.approx(TTestPower().power(effect, count, alpha), abs=1e-9)


def test_what_is_needed_has_the_power_and_one_less_has_not() -> None:
    for difference, deviation in ((0.1, 0.5), (0.02, 0.6), (1.0, 0.4)):
        count = tasks_needed(difference, deviation)
        assert count is not None
        effect = difference / deviation
        assert paired_power(effect, count) >= 0.8 > paired_power(effect, count - 1)
        assert math.ceil(TTestPower().solve_power(effect, None, 0.05, 0.8)) == count
        assert tasks_needed(-difference, deviation) == count


def test_what_is_detectable_is_found_that_often() -> None:
    smallest = minimum_detectable(0.7, 40)
    rng = np.random.default_rng(0)
    result = stats.ttest_1samp(rng.normal(smallest, 0.7, (20_000, 40)), 0, axis=1).pvalue < 0.05
    assert result.mean() == pytest.approx(0.8, abs=0.01)
    assert paired_power(smallest / 0.7, 40) == pytest.approx(0.8, abs=1e-9)


@pytest.mark.parametrize("count", [1449, 1451, 1454, 1500])
def test_where_scipy_has_no_number(count: int) -> None:
    """The answer lies between those of its neighbours, and has the power asked for."""
    smallest = minimum_detectable(1.0, count)
    assert minimum_detectable(1.0, count + 50) < smallest < minimum_detectable(1.0, count - 50)
    assert paired_power(smallest, count) == pytest.approx(0.8, abs=1e-6)
    assert tasks_needed(smallest, 1.0) in (count, count + 1)


def test_the_ends() -> None:
    assert minimum_detectable(0.5, 1) == math.inf
    assert minimum_detectable(0.0, 10) == 0.0
    assert tasks_needed(0.0, 0.5) is None
    assert tasks_needed(1e-9, 1.0) is None
    assert tasks_needed(0.1, math.nan) is None
    assert tasks_needed(0.1, 0.0) == 2
    assert paired_power(1.0, 1) == 0.0
