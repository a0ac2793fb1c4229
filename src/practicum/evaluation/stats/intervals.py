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

LEVEL = 0.95
"""Default level of every interval."""
MIXED_CLUSTERS = 0.25
"""Clusters of one outcome that are added each way when the variance of a rate near 0 or 1 is estimated."""
MAX_RESAMPLED_VALUES = 4_000_000
"""Values that a resampling holds in memory at once, at most."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A range, and the level at which it is to contain the true value."""

    low: float
    high: float
    level: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, its standard error over clusters, and its interval."""

    mean: float
    error: float
    interval: Interval
    count: int
    clusters: int
    effective_clusters: float


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, not at {level}")


def jeffreys(successes: float, count: float, level: float = LEVEL) -> Interval:
    """Modified Jeffreys interval of a success rate (Brown, Cai and DasGupta 2001). No data gives (0, 1).

    Quantiles of Beta(s + ½, n - s + ½); none or one success has the lower end 0, and none the exact (Clopper-Pearson)
    upper end; likewise for failures. Without this the interval excludes its own estimate at 0 and n. `successes` may be
    fractional (a sum of scores) and is clamped to [0, count]; `count` may be an effective number.
    """
    check_level(level)
    if not count > 0 or math.isnan(successes):
        return Interval(0.0, 1.0, level)
    s = min(max(float(successes), 0.0), float(count))
    tail = (1.0 - level) / 2.0
    low, high = map(float, special.betaincinv(s + 0.5, count - s + 0.5, [tail, 1.0 - tail]))
    certain = 1.0 - tail ** (1.0 / count)  # the exact upper end of no success
    if s == 0:
        return Interval(0.0, certain, level)
    if s == count:
        return Interval(1.0 - certain, 1.0, level)
    low = 0.0 if s <= 1 else min(low, 1.0 - certain)
    high = 1.0 if count - s <= 1 else max(high, certain)
    return Interval(low, high, level)


def clustered_mean(values: Sequence[float], clusters: Sequence[Hashable], level: float = LEVEL) -> Estimate:
    """The mean of all values, with a cluster-robust error and a t interval.

    The error is the jackknife's over clusters, which for clusters of one size is the usual one (CR1); the degrees of
    freedom are those of the effective number of clusters, (Σ size)² / Σ size². Both matter where sizes differ much.
    """
    check_level(level)
    x, sizes, totals = by_cluster(values, clusters)
    count, groups = len(x), len(sizes)
    if count == 0:
        return Estimate(math.nan, math.nan, Interval(-math.inf, math.inf, level), 0, 0, 0.0)
    mean = float(x.mean())
    if groups == 1:
        return Estimate(mean, math.nan, Interval(-math.inf, math.inf, level), count, 1, 1.0)
    effective = effective_clusters(sizes)
    error = math.sqrt(_jackknife_sum(sizes, totals, mean)) / count
    margin = t_quantile(effective, level) * error
    return Estimate(mean, error, Interval(mean - margin, mean + margin, level), count, groups, effective)


def effective_clusters(sizes: FloatArray) -> float:
    """The number of clusters of one size that a mean over clusters of these sizes is worth (Kish)."""
    return float(sizes.sum()) ** 2 / float(sizes @ sizes)


def t_quantile(clusters: float, level: float) -> float:
    """Student's two-sided quantile for this many clusters, which may be fractional."""
    return float(special.stdtrit(max(clusters - 1.0, 1.0), 0.5 + level / 2))


def _jackknife_sum(sizes: FloatArray, totals: FloatArray, mean: float) -> float:
    """The jackknife variance of a mean, times the squared number of values."""
    residuals = (totals - sizes * mean) / (1.0 - sizes / sizes.sum())
    return (1.0 - 1.0 / len(sizes)) * float(residuals @ residuals)


def rate_interval(values: Sequence[float], clusters: Sequence[Hashable], level: float = LEVEL) -> Interval:
    """Modified Jeffreys interval of a mean of scores in [0, 1], several of which may belong to one cluster.

    The count is the number of independent 0-or-1 scores of the same standard error, widened as Student's t is. Scores
    of only 0 and 1 are worth at least the effective number of clusters (all scores of a cluster equal) and at most
    their own number (clusters without effect). Fractions vary less, and are worth more: counting each as one 0-or-1
    score would cover nearly always.
    """
    check_level(level)
    x, sizes, totals = by_cluster(values, clusters)
    count, groups = len(x), len(sizes)
    flags = set(values) <= {0.0, 1.0}
    if count == 0 or (flags and count == groups):
        return jeffreys(float(x.sum()), count, level)
    rate = min(max(float(x.mean()), 0.0), 1.0)
    effective = least = effective_clusters(sizes)
    if groups > 1 and 0 < rate < 1:
        share = zero_one_share(x)
        deff = _design_effect(sizes, totals, share)
        independent = count / (deff * _t_ratio(least, level) ** 2) if deff > 0 else float(count)
        effective = max(independent, least) if share < 1 else min(max(independent, least), float(count))
    return jeffreys(rate * effective, effective, level)


def zero_one_share(values: FloatArray) -> float:
    """The variance of scores in [0, 1], as a share of that of scores of only 0 and 1 with the same mean.

    Scores that are all 0 or all 1 look like those.
    """
    if len(values) == 0:
        return 1.0
    mean = float(values.mean())
    largest = mean * (1.0 - mean)
    return min(1.0, float(values.var()) / largest) if largest > 1e-12 else 1.0


def _t_ratio(clusters: float, level: float) -> float:
    """How much wider Student's quantile is than the normal one."""
    return t_quantile(clusters, level) / float(special.ndtri(0.5 + level / 2))


def _design_effect(sizes: FloatArray, totals: FloatArray, share: float) -> float:
    """The variance of a rate over clusters, relative to that of independent 0-or-1 scores.

    With few successes (or failures) the estimate depends on which cluster they happen to lie in, and is low whenever
    the rate is: a quarter of a cluster of successes and one of failures are added, the less the nearer the rate is to
    one half. For scores that vary less than 0 and 1 do (`share`), fewer are added.
    """
    count = float(sizes.sum())
    rate = float(totals.sum()) / count
    added = MIXED_CLUSTERS * (1.0 - 2.0 * rate) ** 2 * share
    size = float(sizes @ sizes) / count  # of the cluster that a score belongs to, on average
    total = count + 2 * added * size
    rate = (float(totals.sum()) + added * size) / total
    summed = _jackknife_sum(sizes, totals, rate) + added * size**2 * ((1.0 - rate) ** 2 + rate**2)
    return summed / total / (rate * (1.0 - rate))


def paired_rate_interval(gained: float, lost: float, count: int, level: float = LEVEL) -> Interval:
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


def resampled_means(rows: FloatArray, sizes: ArrayLike | None, draws: int, seed: int) -> FloatArray:
    """Means [draws, rows] over clusters drawn with replacement; all rows share the same draws.

    rows [rows, clusters] are the sums of each cluster, sizes [clusters] its number of values (1 by default). Written by
    hand: scipy's `bootstrap` has no clusters of different size, and its draws would change recorded numbers.
    """
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


def pass_at(k: int, successes: int, attempts: int) -> float:
    """Unbiased chance that at least one of `k` attempts succeeds: 1 - C(n - c, k) / C(n, k) for c of n."""
    if not 1 <= k <= attempts or not 0 <= successes <= attempts:
        raise ValueError(f"pass@{k} needs at least {k} attempts, not {successes} successes of {attempts}")
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def by_cluster(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The values, and for each cluster in order of appearance its number of values and their sum."""
    if len(values) != len(clusters):
        raise ValueError("every value needs its cluster")
    x = np.asarray(values, dtype=np.float64).reshape(-1)
    indices: dict[Hashable, int] = {}
    index = np.array([indices.setdefault(cluster, len(indices)) for cluster in clusters], dtype=np.int64)
    sizes = np.bincount(index, minlength=len(indices)).astype(np.float64)
    totals = np.bincount(index, weights=x, minlength=len(indices)).astype(np.float64)
    return x, sizes, totals
