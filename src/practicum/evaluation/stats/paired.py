"""Paired tests: do two policies differ on the same tasks by more than chance? Two-sided p-values.

Every test takes differences (second - first) or counts of them, never two unpaired samples. No data, or no difference
anywhere, gives p = 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from practicum.evaluation.stats.intervals import MAX_RESAMPLED_VALUES, resampled_means
from practicum.utils.arrays import FloatArray

MAX_EXACT_DIFFERENCES = 16
"""Differences other than zero up to which every choice of signs is tried."""


def mcnemar(gained: int, lost: int) -> float:
    """Exact McNemar p-value from the number of tasks gained and lost: tasks that both solve or both fail take no part.

    Twice the smaller tail of a fair binomial, which is what scipy's `binomtest` gives to 15 digits.
    """
    if gained + lost == 0:
        return 1.0
    return min(1.0, 2 * float(special.bdtr(min(gained, lost), gained + lost, 0.5)))


def permutation_test(differences: ArrayLike, draws: int = 20_000, seed: int = 0) -> FloatArray:
    """Paired permutation test [...] of differences [..., tasks]: under the null either score could be either policy's.

    Up to sixteen differences other than zero every choice of signs is tried; beyond that, `draws` random ones. Written
    by hand: scipy's `permutation_test` draws other signs, which would change recorded p-values.
    """
    x = np.asarray(differences, dtype=np.float64)
    if x.shape[-1] == 0:
        return np.ones(x.shape[:-1])
    rows = x.reshape(-1, x.shape[-1])
    used = np.flatnonzero((rows != 0).any(axis=0))
    rows = rows[:, used]
    if len(used) == 0:
        return np.ones(x.shape[:-1])
    observed = np.abs(rows.sum(axis=1))
    # Sums of the same numbers in another order differ in the last bits: what is equal must count as equal.
    limit = observed - 1e-12 * np.abs(rows).sum(axis=1)
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
        sums = (2.0 * codes - 1.0) @ rows.T
        reached += (np.abs(sums) >= limit).sum(axis=0)
    p = reached / total if exact else (reached + 1) / (total + 1)
    return np.minimum(1.0, p).reshape(x.shape[:-1])


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
    p = np.asarray(stats.wilcoxon(x, axis=-1).pvalue, dtype=np.float64)
    return np.where(np.isnan(p), 1.0, p)
