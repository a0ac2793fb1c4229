"""Slopes against scipy's regression, and turns counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from practicum.evaluation.stats.trend import reversals, trend


@pytest.mark.parametrize("level", [0.9, 0.99])
def test_slope_and_interval_equal_scipys(level: float) -> None:
    rng = np.random.default_rng(0)
    steps = [0.0, 1.0, 2.0, 5.0, 6.0, 9.0, 10.0]
    values = [0.3 * step + rng.normal() for step in steps]
    line = trend(steps, values, level)
    wanted = stats.linregress(steps, values)
    margin = stats.t.ppf(0.5 + level / 2, len(steps) - 2) * wanted.stderr
    assert line is not None
    assert line.slope == pytest.approx(wanted.slope, abs=1e-12)
    assert (line.low, line.high) == pytest.approx((wanted.slope - margin, wanted.slope + margin), abs=1e-12)


def test_two_points_or_one_place_say_nothing() -> None:
    assert trend([], []) is None
    assert trend([1, 2], [0.0, 1.0]) is None
    assert trend([3, 3, 3], [0.0, 1.0, 2.0]) is None


@pytest.mark.parametrize(
    ("values", "size", "count"),
    [
        ([], 1.0, 0),
        ([0, 1, 2, 3, 9], 1.0, 0),  # steep, never back
        ([0, 1, 0, 1, 0], 1.0, 3),  # the first leg is no turn
        ([0, 1, 0, 1, 0], 1.1, 0),
        ([0, 0.6, 0.4, 1.0, 0.5, 0.1, 0.5, 0.9], 0.8, 2),  # 0 up to 1, down to 0.1, up to 0.9
        ([1, 0, 1, 0], 1.0, 2),
    ],
)
def test_turns(values: list[float], size: float, count: int) -> None:
    assert reversals(values, size) == count
