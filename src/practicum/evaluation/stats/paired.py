"""Paired tests: do two policies differ on the same tasks by more than chance? Two-sided p-values.

Every test takes differences (second - first) or counts of them, never two unpaired samples. No data, or no difference
anywhere, gives p = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from practicum.evaluation.stats.intervals import MAX_RESAMPLED_VALUES, resampled_means
from practicum.utils.arrays import FloatArray

MAX_EXACT_DIFFERENCES = 16
"""Differences other than zero up to which every choice of signs is tried."""
MAX_RANKED_DIFFERENCES = 13
"""Differences up to which scipy's Wilcoxon test lists all signs too where ranks tie, which takes it seconds."""
MAX_MID_P_SHARE = 0.85
"""Share of tasks gained or lost up to which McNemar's test uses the mid-p value, beyond it the exact one."""


def is_mid_p(differing: int, count: int) -> bool:
    """Whether McNemar's test uses the mid-p value for these numbers of `count` tasks gained and lost."""
    return differing <= MAX_MID_P_SHARE * count


def mcnemar(gained: int, lost: int, count: int) -> float:
    """The p-value of McNemar's test from the number of tasks gained and lost, of `count` tasks in all.

    It is the mid-p value: the counts observed enter with half of their probability. The exact test keeps its level for
    certain, but with few tasks it is far below it and wastes power (Fagerland, Lydersen and Laake 2013). The mid-p test
    keeps its level on average over the number of tasks that differ. Where nearly all tasks differ, that number hardly
    varies and the mid-p test rejects up to 7.7 % of the time at 5 % (16 of 16 tasks): the exact p-value is used there.
    """
    if not is_mid_p(gained + lost, count):
        return mcnemar_exact(gained, lost)
    if gained == lost:
        return 1.0
    return 2 * float(special.bdtr(min(gained, lost), gained + lost, 0.5)) - _fair_binomial(gained, gained + lost)


def mcnemar_exact(gained: int, lost: int) -> float:
    """The exact McNemar p-value: twice the smaller tail of a fair binomial, as scipy's `binomtest` gives it."""
    if gained + lost == 0:
        return 1.0
    tail = 2 * float(special.bdtr(min(gained, lost), gained + lost, 0.5))
    return min(1.0, tail)


def _fair_binomial(count: int, total: int) -> float:
    """The probability of `count` heads in `total` tosses of a fair coin."""
    ways = math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
    return math.exp(ways - total * math.log(2))


def permutation_test(
    differences: ArrayLike, sizes: ArrayLike | None = None, draws: int = 20_000, seed: int = 0
) -> FloatArray:
    """Paired permutation test [...] of differences [..., clusters]: either score could be either policy's.

    `differences` are sums over clusters and `sizes` [clusters] their numbers of tasks (1 by default); the signs of
    whole clusters are exchanged. The statistic is studentised: the mean over its cluster-robust error. For clusters of
    one size that orders the choices as the sum itself does. Up to sixteen differences other than zero every choice of
    signs is tried; beyond that, `draws` random ones. Written by hand: scipy's `permutation_test` draws other signs,
    which would change recorded p-values.
    """
    x = np.asarray(differences, dtype=np.float64)
    if x.shape[-1] == 0 or not x.any():
        return np.ones(x.shape[:-1])
    rows = x.reshape(-1, x.shape[-1])
    weights = np.ones(x.shape[-1]) if sizes is None else np.asarray(sizes, dtype=np.float64)
    used = np.flatnonzero((rows != 0).any(axis=0))
    rows = rows[:, used]
    statistic = _studentised(rows, weights, used)
    observed = statistic(np.ones((1, len(used))))[0]
    # The same numbers in another order differ in the last bits: what is equal must count as equal.
    limit = observed * (1 - 1e-9)
    exact = len(used) <= MAX_EXACT_DIFFERENCES
    total = 2 ** len(used) if exact else draws
    block = max(1, MAX_RESAMPLED_VALUES // max(len(used), len(rows)))
    rng = np.random.default_rng(seed)
    reached = np.zeros(len(rows))
    for start in range(0, total, block):
        size = min(block, total - start)
        if exact:
            codes = np.arange(start, start + size)[:, None] >> np.arange(len(used))[None, :] & 1
        else:
            codes = rng.integers(0, 2, size=(size, len(used)))
        reached += (statistic(np.asarray(2.0 * codes - 1.0, dtype=np.float64)) >= limit).sum(axis=0)
    p = reached / total if exact else (reached + 1) / (total + 1)
    return np.minimum(1.0, p).reshape(x.shape[:-1])


def _studentised(rows: FloatArray, weights: FloatArray, used: NDArray[np.int64]) -> Callable[[FloatArray], FloatArray]:
    """The squared mean over its squared error [signs, rows], up to a constant factor, for signs [signs, clusters].

    With a share q of the squares explained by the mean it is q / (1 - q): ordered as q is, and q is finite.
    """
    squares = (rows**2).sum(axis=1)
    equal = bool((weights == weights[0]).all())
    count, weight_squares = float(weights.sum()), float(weights @ weights)
    weighted = rows * weights[used]

    def statistic(signs: FloatArray) -> FloatArray:
        sums = signs @ rows.T
        if equal:
            return np.asarray(sums**2 / np.where(squares > 0, squares, 1.0))
        means = sums / count
        residuals = squares - 2 * means * (signs @ weighted.T) + means**2 * weight_squares
        return np.asarray(sums**2 / np.maximum(sums**2 + residuals, 1e-300))

    return statistic


def bootstrap_test(differences: ArrayLike, draws: int = 10_000, seed: int = 0) -> FloatArray:
    """Paired bootstrap test [...] of differences [..., tasks]: how often means drawn around 0 lie as far from it."""
    x = np.asarray(differences, dtype=np.float64)
    if x.shape[-1] == 0:
        return np.ones(x.shape[:-1])
    rows = x.reshape(-1, x.shape[-1])
    means = rows.mean(axis=1)
    drawn = resampled_means(rows - means[:, None], None, draws, seed)
    reached = (np.abs(drawn) >= np.abs(means) * (1 - 1e-12)).sum(axis=0)
    p = np.where(means == 0, 1.0, (reached + 1) / (draws + 1))
    return np.asarray(p, dtype=np.float64).reshape(x.shape[:-1])


def wilcoxon(differences: ArrayLike) -> FloatArray:
    """Wilcoxon's signed-rank test [...] of differences [..., tasks]; zeros take no part."""
    x = np.asarray(differences, dtype=np.float64)
    if x.shape[-1] == 0 or not x.any():
        return np.ones(x.shape[:-1])
    if x.shape[-1] <= MAX_RANKED_DIFFERENCES:
        rows = [float(permutation_test(_signed_ranks(row))) for row in x.reshape(-1, x.shape[-1])]
        return np.asarray(rows, dtype=np.float64).reshape(x.shape[:-1])
    p = np.asarray(stats.wilcoxon(x, axis=-1).pvalue, dtype=np.float64)
    return np.where(np.isnan(p), 1.0, p)


def _signed_ranks(differences: FloatArray) -> FloatArray:
    used = differences[differences != 0]
    return np.asarray(stats.rankdata(np.abs(used)) * np.sign(used), dtype=np.float64)
