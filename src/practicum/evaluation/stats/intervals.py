"""Intervals of rates, means and differences. Attempts at one task are not independent: they form a cluster.

Every function has a value for every input: no data gives the widest interval, one cluster an infinite one, and a
constant sample on a known scale still gives an interval with a width.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from practicum.utils.arrays import FloatArray

LEVEL = 0.80
"""Default level of the interval of a score: that of Affine."""
COMPARISON_LEVEL = 0.95
"""Default level of the interval of a difference, and of the scores in a table of policies."""
MAX_RESAMPLED_VALUES = 4_000_000
"""Values that a resampling holds in memory at once, at most."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A range, and the level at which it is to contain the true value."""

    low: float
    high: float
    level: float

    @property
    def clear_of_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, its standard error over clusters, and its interval."""

    mean: float
    error: float
    interval: Interval
    count: int
    clusters: int


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, not at {level}")


def jeffreys(successes: float, count: float, level: float = LEVEL) -> Interval:
    """Jeffreys interval of a success rate: quantiles of Beta(s + ½, n - s + ½). No data gives (0, 1).

    `successes` may be fractional (a sum of scores) and is clamped to [0, count]; `count` may be an effective number.
    """
    check_level(level)
    if not count > 0 or math.isnan(successes):
        return Interval(0.0, 1.0, level)
    s = min(max(float(successes), 0.0), float(count))
    tail = (1.0 - level) / 2.0
    low, high = special.betaincinv(s + 0.5, count - s + 0.5, [tail, 1.0 - tail])
    return Interval(float(low), float(high), level)


def clustered_mean(values: Sequence[float], clusters: Sequence[Hashable], level: float = LEVEL) -> Estimate:
    """The mean of all values, with a cluster-robust (CR1) error and a t interval of (clusters - 1) degrees."""
    check_level(level)
    x, sizes, totals = _by_cluster(values, clusters)
    count, groups = len(x), len(sizes)
    if count == 0:
        return Estimate(math.nan, math.nan, Interval(-math.inf, math.inf, level), 0, 0)
    mean = float(x.mean())
    if groups == 1:
        return Estimate(mean, math.nan, Interval(-math.inf, math.inf, level), count, 1)
    residuals = totals - sizes * mean
    error = math.sqrt(groups / (groups - 1) * float(residuals @ residuals)) / count
    margin = float(special.stdtrit(groups - 1, 0.5 + level / 2)) * error
    return Estimate(mean, error, Interval(mean - margin, mean + margin, level), count, groups)


def rate_interval(values: Sequence[float], clusters: Sequence[Hashable], level: float = LEVEL) -> Interval:
    """Jeffreys interval of a mean of scores in [0, 1], several of which may belong to one cluster.

    The count is the number of independent scores with the same standard error: between the number of clusters (all
    scores of a cluster equal) and the number of scores (clusters without effect).
    """
    estimate = clustered_mean(values, clusters, level)
    if estimate.count == 0 or estimate.count == estimate.clusters:
        return jeffreys(math.fsum(values), estimate.count, level)
    rate = min(max(estimate.mean, 0.0), 1.0)
    variance = rate * (1.0 - rate)
    effective = float(estimate.clusters)
    if estimate.clusters > 1 and variance > 0:
        independent = variance / estimate.error**2 if estimate.error > 0 else math.inf
        effective = min(max(independent, effective), float(estimate.count))
    return jeffreys(rate * effective, effective, level)


def fraction_interval(values: Sequence[float], clusters: Sequence[Hashable], level: float = LEVEL) -> Interval:
    """Interval of a mean of scores anywhere in [0, 1], which vary less than scores of only 0 and 1 do.

    Jeffreys with the number of 0-or-1 scores that would have the same standard error, small samples widened as
    Student's t is. Counting each fraction as one 0-or-1 score would cover nearly always: an 80 % interval in name only.
    """
    estimate = clustered_mean(values, clusters, level)
    variance = estimate.mean * (1.0 - estimate.mean)
    if estimate.clusters < 2 or not estimate.error > 0 or not variance > 0 or set(values) <= {0.0, 1.0}:
        return rate_interval(values, clusters, level)
    upper = 0.5 + level / 2
    error = estimate.error * float(special.stdtrit(estimate.clusters - 1, upper) / special.ndtri(upper))
    count = variance / error**2
    return jeffreys(estimate.mean * count, count, level)


def paired_rate_interval(gained: float, lost: float, count: int, level: float = 0.95) -> Interval:
    """Interval of the difference of two paired success rates: Wald's with z²/4 pairs added each way.

    At 95 % that is one pair each way (Bonett and Price). It keeps a width where all pairs agree or all differ; a
    bootstrap does not.
    """
    check_level(level)
    if count <= 0:
        return Interval(-1.0, 1.0, level)
    z = float(special.ndtri(0.5 + level / 2))
    added, total = z * z / 4, count + z * z / 2
    up, down = (gained + added) / total, (lost + added) / total
    margin = z * math.sqrt(max(0.0, up + down - (up - down) ** 2) / total)
    return Interval(max(-1.0, up - down - margin), min(1.0, up - down + margin), level)


def bootstrap(
    totals: ArrayLike,
    sizes: ArrayLike | None = None,
    level: float = LEVEL,
    draws: int = 10_000,
    seed: int = 0,
) -> tuple[FloatArray, FloatArray]:
    """Percentile limits [...] of the mean, clusters drawn with replacement.

    totals [..., clusters] are the sums of each cluster, sizes [clusters] its number of values (1 by default). Written
    by hand: scipy's `bootstrap` has no clusters of different size, and its draws would change recorded intervals.
    """
    check_level(level)
    sums = np.asarray(totals, dtype=np.float64)
    rows = sums.reshape(-1, sums.shape[-1])
    means = resampled_means(rows, sizes, draws, seed)
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail], axis=0)
    return low.reshape(sums.shape[:-1]), high.reshape(sums.shape[:-1])


def resampled_means(rows: FloatArray, sizes: ArrayLike | None, draws: int, seed: int) -> FloatArray:
    """Means [draws, rows] over clusters drawn with replacement; all rows share the same draws."""
    groups = rows.shape[-1]
    weights = np.ones(groups) if sizes is None else np.asarray(sizes, dtype=np.float64)
    rng = np.random.default_rng(seed)
    block = max(1, MAX_RESAMPLED_VALUES // groups)
    pieces = []
    for start in range(0, draws, block):
        picks = rng.integers(0, groups, size=(min(block, draws - start), groups))
        flat = (picks + groups * np.arange(len(picks))[:, None]).ravel()
        times = np.bincount(flat, minlength=len(picks) * groups).reshape(len(picks), groups).astype(np.float64)
        pieces.append((times @ rows.T) / (times @ weights)[:, None])
    return np.concatenate(pieces)


def bootstrap_mean(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    level: float = LEVEL,
    draws: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of a mean; whole clusters are drawn."""
    _, sizes, totals = _by_cluster(values, range(len(values)) if clusters is None else clusters)
    if len(totals) == 0:
        return Interval(-math.inf, math.inf, level)
    low, high = bootstrap(totals, sizes, level, draws, seed)
    return Interval(float(low), float(high), level)


def paired_difference(
    first: Sequence[float], second: Sequence[float], level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> tuple[float, Interval]:
    """Mean of second - first over the same tasks, with a bootstrap interval over tasks."""
    if len(first) != len(second):
        raise ValueError("paired differences need the same tasks on both sides")
    difference = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    if len(difference) == 0:
        return math.nan, Interval(-math.inf, math.inf, level)
    return float(difference.mean()), bootstrap_mean(difference.tolist(), None, level, draws, seed)


def pass_at(k: int, successes: int, attempts: int) -> float:
    """Unbiased chance that at least one of `k` attempts succeeds: 1 - C(n - c, k) / C(n, k) for c of n."""
    if not 1 <= k <= attempts or not 0 <= successes <= attempts:
        raise ValueError(f"pass@{k} needs at least {k} attempts, not {successes} successes of {attempts}")
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def _by_cluster(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The values, and for each cluster in order of appearance its number of values and their sum."""
    if len(values) != len(clusters):
        raise ValueError("every value needs its cluster")
    x = np.asarray(values, dtype=np.float64).reshape(-1)
    indices: dict[Hashable, int] = {}
    index = np.array([indices.setdefault(cluster, len(indices)) for cluster in clusters], dtype=np.int64)
    sizes = np.bincount(index, minlength=len(indices)).astype(np.float64)
    totals = np.bincount(index, weights=x, minlength=len(indices)).astype(np.float64)
    return x, sizes, totals
