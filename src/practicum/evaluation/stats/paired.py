"""Two policies on the same tasks: does their difference need more than luck? Two-sided p-values.

Every test takes differences (second - first) or paired flags, never two unpaired samples. No data, or no difference
anywhere, gives p = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from practicum.evaluation.stats.intervals import BLOCK, resampled
from practicum.utils.arrays import FloatArray

EXACT = 16
"""Differences other than zero up to which every choice of signs is tried."""


def mcnemar(first: Sequence[bool], second: Sequence[bool], mid: bool = False) -> float:
    """Exact McNemar p-value for paired success flags: only tasks that differ speak."""
    if len(first) != len(second):
        raise ValueError("paired tests need the same tasks on both sides")
    gained = sum(bool(b) and not a for a, b in zip(first, second, strict=True))
    lost = sum(bool(a) and not b for a, b in zip(first, second, strict=True))
    return mcnemar_counts(gained, lost, mid)


def mcnemar_counts(gained: int, lost: int, mid: bool = False) -> float:
    """The same from the number of tasks gained and lost.

    The exact test rejects less often than it may, for the count is whole; `mid` takes half of what was seen, which
    comes nearer to the level and may pass it a little.
    """
    differing = gained + lost
    if differing == 0:
        return 1.0
    p = min(1.0, 2 * float(special.bdtr(min(gained, lost), differing, 0.5)))
    if not mid or gained == lost:
        return p
    return p - float(stats.binom.pmf(gained, differing, 0.5))


def sign_flip(differences: ArrayLike, draws: int = 20_000, seed: int = 0) -> FloatArray:
    """Paired permutation test [...] of differences [..., tasks]: under the null either score could be either policy's.

    Up to sixteen differences other than zero every choice of signs is tried; beyond that, `draws` random ones.
    """
    x = np.asarray(differences, dtype=np.float64)
    if x.shape[-1] == 0:
        return np.ones(x.shape[:-1])
    rows = x.reshape(-1, x.shape[-1])
    used = np.flatnonzero((rows != 0).any(axis=0))
    rows = rows[:, used]
    if len(used) == 0:
        return np.ones(x.shape[:-1])
    seen = np.abs(rows.sum(axis=1))
    # Sums of the same numbers in another order differ in the last bits: what is equal must count as equal.
    limit = seen - 1e-12 * np.abs(rows).sum(axis=1)
    exact = len(used) <= EXACT
    total = 2 ** len(used) if exact else draws
    block = max(1, BLOCK // max(len(used), len(rows)))
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
    drawn = resampled(rows - means[:, None], None, draws, seed)
    reached = (np.abs(drawn) >= np.abs(means) * (1 - 1e-12)).sum(axis=0)
    p = np.where(means == 0, 1.0, (reached + 1) / (draws + 1))
    return np.asarray(p, dtype=np.float64).reshape(x.shape[:-1])


def wilcoxon(differences: ArrayLike) -> FloatArray:
    """Wilcoxon's signed-rank test [...] of differences [..., tasks]; those that are zero take no part."""
    x = np.asarray(differences, dtype=np.float64)
    if x.shape[-1] == 0 or not x.any():
        return np.ones(x.shape[:-1])
    p = np.asarray(stats.wilcoxon(x, axis=-1).pvalue, dtype=np.float64)
    return np.where(np.isnan(p), 1.0, p)


def paired_t(differences: Sequence[float]) -> float:
    """Student's paired t-test. Equal differences other than zero are beyond it: p = 0, unless there is only one."""
    count = len(differences)
    if count < 2 or not any(differences):
        return 1.0
    mean = math.fsum(differences) / count
    spread = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (count - 1))
    if spread == 0:
        return 0.0
    return float(2 * special.stdtr(count - 1, -abs(mean) / (spread / math.sqrt(count))))
