"""Paired tests against scipy and statsmodels, and by listing every case."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as their_mcnemar

from practicum.evaluation.stats.paired import bootstrap_test, mcnemar, mcnemar_exact, permutation_test, wilcoxon

RNG = np.random.default_rng(11)


@pytest.mark.parametrize(("gained", "lost"), [(0, 1), (1, 1), (12, 3), (3, 12), (40, 41), (200, 150)])
def test_mcnemar_is_statsmodels(gained: int, lost: int) -> None:
    expected = their_mcnemar([[30, lost], [gained, 10]], exact=True).pvalue
    assert mcnemar_exact(gained, lost) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("gained", "lost"), [(0, 1), (1, 1), (5, 0), (12, 3), (3, 12), (40, 41), (900, 800)])
def test_mid_p_counts_half_of_what_was_seen(gained: int, lost: int) -> None:
    coin = stats.binom(gained + lost, 0.5)
    larger = max(gained, lost)
    p_value = mcnemar(gained, lost, 2 * (gained + lost))
    assert p_value == pytest.approx(min(1.0, 2 * (coin.sf(larger) + coin.pmf(larger) / 2)), abs=1e-9)
    assert p_value < mcnemar_exact(gained, lost) or gained == lost


def test_where_nearly_all_tasks_differ_the_exact_value_is_used() -> None:
    """There the mid-p test rejects 7.7 % of the time at 5 %: 12 of 16 tasks gained."""
    assert mcnemar(12, 4, 19) == pytest.approx(0.0490, abs=1e-4)
    assert mcnemar(12, 4, 16) == mcnemar_exact(12, 4) == pytest.approx(0.0768, abs=1e-4)
    assert mcnemar(8, 8, 16) == 1.0


def test_unequal_clusters_are_studentised() -> None:
    """Against listing every choice of signs of whole clusters."""
    totals, sizes = np.array([3.0, -1.0, 0.5, 2.0, 0.0]), np.array([10.0, 1.0, 2.0, 4.0, 3.0])

    def statistic(signs: np.ndarray) -> float:
        mean = (signs * totals).sum() / sizes.sum()
        return float(mean**2 / ((signs * totals - sizes * mean) ** 2).sum())

    listed = [statistic(np.array(signs)) for signs in itertools.product((1, -1), repeat=5)]
    expected = np.mean(np.array(listed) >= statistic(np.ones(5)) * (1 - 1e-9))
    assert float(permutation_test(totals, sizes)) == pytest.approx(expected, abs=1e-12)


def test_permutation_test_is_scipys() -> None:
    for size in (2, 7, 10):
        x = RNG.normal(0.4, 1, size)
        expected = stats.permutation_test((x,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
        assert float(permutation_test(x)) == pytest.approx(expected, abs=1e-9)


def test_permutation_test_of_flags_is_mcnemar() -> None:
    x = [1.0] * 9 + [-1.0] * 3 + [0.0] * 40
    assert float(permutation_test(x)) == pytest.approx(mcnemar_exact(9, 3), abs=1e-12)


def test_permutation_test_draws_signs_for_many_differences() -> None:
    x = [1.0] * 24 + [-1.0] * 10
    assert float(permutation_test(x)) == pytest.approx(mcnemar_exact(24, 10), abs=0.004)
    assert float(permutation_test(x)) == float(permutation_test(x))
    assert float(permutation_test([1.0] * 60)) == pytest.approx(1 / 20_001)  # never 0: nobody has tried all


def test_permutation_test_counts_ties_as_reached() -> None:
    """.1 + .2 and .3 are the same score whatever the last bit says."""
    x = [0.1, 0.2, -0.3, 0.3]
    listed = [sum(s * v for s, v in zip(signs, x, strict=True)) for signs in itertools.product((1, -1), repeat=4)]
    expected = sum(abs(total) >= abs(sum(x)) - 1e-9 for total in listed) / 16
    assert float(permutation_test(x)) == pytest.approx(expected, abs=1e-12)


def test_each_row_is_tested_on_its_own() -> None:
    rows = RNG.normal(0.3, 1, (5, 9))
    assert permutation_test(rows).tolist() == pytest.approx([float(permutation_test(row)) for row in rows])
    assert bootstrap_test(rows).tolist() == pytest.approx([float(bootstrap_test(row)) for row in rows])


def test_bootstrap_test_agrees_with_the_t_test_in_large_samples() -> None:
    x = RNG.normal(0.1, 1, 400)
    assert float(bootstrap_test(x)) == pytest.approx(stats.ttest_1samp(x, 0).pvalue, abs=0.01)


def test_wilcoxon_is_scipys() -> None:
    tied = np.array([0, 0, 1, 2, -1, 2, 0.5])
    for x in (RNG.normal(0.4, 1, 9), RNG.normal(0.1, 1, 80), tied, np.array([1, 1, -1, 0, 1, 1, 3, -2.0])):
        assert float(wilcoxon(x)) == pytest.approx(stats.wilcoxon(x).pvalue, abs=1e-9)


@pytest.mark.parametrize("differences", [[], [0.0], [0.0] * 30])
def test_no_difference_is_no_evidence(differences: list[float]) -> None:
    for test in (permutation_test, bootstrap_test, wilcoxon):
        assert float(test(differences)) == 1.0


def test_one_task_proves_nothing() -> None:
    assert float(permutation_test([0.7])) == 1.0
    assert float(wilcoxon([0.7])) == 1.0
    assert mcnemar_exact(1, 0) == 1.0
    assert mcnemar(1, 0, 1) == 1.0
    assert mcnemar(1, 0, 2) == 0.5


def test_a_constant_difference() -> None:
    """Five tasks that all gain the same: one in sixteen by chance; a t-test would give 0."""
    assert float(permutation_test([0.25] * 5)) == 1 / 16
