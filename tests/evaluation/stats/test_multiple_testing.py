"""Holm's correction against statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from practicum.evaluation.stats.multiple_testing import holm

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("count", [1, 2, 8, 40])
def test_holm_is_statsmodels(count: int) -> None:
    p = (RNG.random(count) ** 3).tolist()
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1].tolist(), abs=1e-9)


def test_ties_and_no_tests() -> None:
    assert holm([]) == []
    assert holm([0.04, 0.04]) == [0.08, 0.08]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
