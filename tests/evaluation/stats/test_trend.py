"""Slopes against scipy's regression."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from practicum.evaluation.stats.trend import trend


@pytest.mark.parametrize("level", [0.9, 0.99])
def test_slope_and_interval_equal_scipys(level: float) -> None:
    rng = np.random.default_rng(0)
    steps = [0.0, 1.0, 2.0, 5.0, 6.0, 9.0, 10.0]
    values = [0.3 * step + rng.normal() for step in steps]
    line = trend(steps, values, level)
    expected = stats.linregress(steps, values)
    margin = stats.t.ppf(0.5 + level / 2, len(steps) - 2) * expected.stderr
    assert line is not None
    assert line.slope == pytest.approx(expected.slope, abs=1e-12)
    assert (line.low, line.high) == pytest.approx((expected.slope - margin, expected.slope + margin), abs=1e-12)


def test_two_points_or_one_place_say_nothing() -> None:
    assert trend([], []) is None
    assert trend([1, 2], [0.0, 1.0]) is None
    assert trend([3, 3, 3], [0.0, 1.0, 2.0]) is None
