"""HTDAG's t-test and effect sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_effectsize
from statsmodels.stats.weightstats import ttest_ind as their_t_test

from practicum.evaluation.stats.unpaired import cohens_d, cohens_h, t_test

RNG = np.random.default_rng(3)


def test_t_test_is_scipys_and_statsmodels() -> None:
    for n, m in ((2, 1), (5, 9), (100, 100)):
        a, b = RNG.normal(size=n), RNG.normal(0.3, 1, m)
        result = t_test(a.tolist(), b.tolist())
        expected = stats.ttest_ind(a, b)
        assert (result.statistic, result.p_value) == pytest.approx((expected.statistic, expected.pvalue), abs=1e-9)
        if m > 1:
            statistic, p, degrees = their_t_test(a, b)
            assert (result.statistic, result.p_value, result.degrees) == pytest.approx(
                (statistic, p, degrees), abs=1e-9
            )


def test_htdags_line() -> None:
    baseline, trained = [1] * 70 + [0] * 30, [1] * 85 + [0] * 15
    expected = stats.ttest_ind(baseline, trained)
    line = t_test(baseline, trained).sentence
    assert line.endswith(f"t-statistic: {expected.statistic:.3f}, p-value: {expected.pvalue:.4f}")
    assert line == "Two-sample t-test (unpaired): t-statistic: -2.569, p-value: 0.0109"


def test_constant_samples_have_an_answer() -> None:
    same = t_test([1, 1, 1], [1, 1])
    assert (same.statistic, same.p_value) == (0.0, 1.0)
    apart = t_test([0, 0, 0], [1, 1, 1])
    assert (apart.statistic, apart.p_value) == (-math.inf, 0.0)
    assert "constant" in apart.sentence
    half = t_test([0, 0, 0], [1, 0, 1])
    assert half.p_value == pytest.approx(stats.ttest_ind([0, 0, 0], [1, 0, 1]).pvalue, abs=1e-9)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1], []), ([1], [0])])
def test_too_few_scores(a: list[float], b: list[float]) -> None:
    result = t_test(a, b)
    assert result.p_value == 1.0
    assert "too few" in result.note


def test_effect_sizes_are_statsmodels() -> None:
    a, b = RNG.normal(size=12), RNG.normal(0.5, 2, 20)
    pooled = math.sqrt((11 * a.var(ddof=1) + 19 * b.var(ddof=1)) / 30)
    d = cohens_d(a.tolist(), b.tolist())
    assert d == pytest.approx((b.mean() - a.mean()) / pooled, abs=1e-12)
    assert cohens_h(0.3, 0.7) == pytest.approx(proportion_effectsize(0.7, 0.3), abs=1e-9)


def test_effects_without_a_spread() -> None:
    assert cohens_d([1, 1], [1, 1]) == 0.0
    assert cohens_d([0, 0], [1, 1]) is None
    assert cohens_d([], [1]) is None
    assert cohens_h(0, 1) == pytest.approx(math.pi)
