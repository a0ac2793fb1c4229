"""Holm's correction against statsmodels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from practicum.evaluation.stats.multiple_testing import holm, look_penalty

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("count", [1, 2, 8, 40])
def test_holm_is_statsmodels(count: int) -> None:
    p = (RNG.random(count) ** 3).tolist()
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1].tolist(), abs=1e-9)


def test_ties_and_no_tests() -> None:
    assert holm([]) == []
    assert holm([0.04, 0.04]) == [0.08, 0.08]
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize("looks", [1, 2, 3, 5, 10])
@pytest.mark.parametrize("most", [1.0, 4.0, 50.0, 1e5])
def test_planned_looks_keep_five_percent_however_much_is_added(looks: int, most: float) -> None:
    """Normal increments; every look adds what a difference of the size seen needs, up to `most` times what there is."""
    rng, draws = np.random.default_rng(looks), 40_000
    limit = stats.norm.isf(0.05 / look_penalty(looks) / 2)
    count, total = np.full(draws, 60.0), rng.normal(0, math.sqrt(60), draws)
    shown = np.abs(total) > limit * np.sqrt(count)
    for _ in range(looks - 1):
        needed = ((limit + 0.8416) * count / np.maximum(np.abs(total), 1e-9)) ** 2
        added = np.clip(needed - count, 1, most * count)
        total, count = total + rng.normal(0, 1, draws) * np.sqrt(added), count + added
        shown |= np.abs(total) > limit * np.sqrt(count)
    assert shown.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)
