"""How sure is a score? Rates, means and differences with intervals; attempts at one task are not independent.

Nothing here is undefined: no data gives an interval that says nothing, one cluster gives an infinite one, and a
constant sample is no proof of certainty where the scale is known.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from practicum.utils.arrays import FloatArray

LEVEL = 0.80
"""Default level of the interval of a score: that of Affine."""
COMPARISON_LEVEL = 0.95
"""Default level of the interval of a difference, and of the scores in a table of policies."""
BLOCK = 4_000_000
"""Numbers that a resampling holds at once."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A range and the level it is meant to cover with."""

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
    """Jeffreys interval of a success rate: Beta(s + ½, n - s + ½). Nothing seen says nothing: (0, 1).

    `successes` may be fractional (a sum of scores) and is clamped to [0, count]; `count` may be an effective number.
    """
    check_level(level)
    if not count > 0 or math.isnan(successes):
        return Interval(0.0, 1.0, level)
    s = min(max(float(successes), 0.0), float(count))
    tail = (1.0 - level) / 2.0
    low, high = stats.beta.ppf([tail, 1.0 - tail], s + 0.5, count - s + 0.5)
    return Interval(float(low), float(high), level)


def clustered_mean(values: Sequence[float], clusters: Sequence[Hashable], level: float = LEVEL) -> Estimate:
    """The mean of all values with a cluster-robust (CR1) error and a t interval with one degree less than clusters."""
    check_level(level)
    x, sizes, totals = _by_cluster(values, clusters)
    count, groups = len(x), len(sizes)
    if count == 0:
        return Estimate(math.nan, math.nan, Interval(-math.inf, math.inf, level), 0, 0)
    mean = float(x.mean())
    if groups == 1:
        return Estimate(mean, math.nan, Interval(-math.inf, math.inf, level), count, 1)
    rest = totals - sizes * mean
    error = math.sqrt(groups / (groups - 1) * float(rest @ rest)) / count
    margin = float(special.stdtrit(groups - 1, 0.5 + level / 2)) * error
    return Estimate(mean, error, Interval(mean - margin, mean + margin, level), count, groups)


def rate_interval(values: Sequence[float], clusters: Sequence[Hashable], level: float = LEVEL) -> Interval:
    """Jeffreys interval of a mean of scores in [0, 1], several of which may belong to one cluster.

    The count is the number of independent scores that would be as uncertain as these: from the number of clusters (all
    scores of a cluster alike) to the number of scores (a cluster means nothing).
    """
    estimate = clustered_mean(values, clusters, level)
    if estimate.count == 0 or estimate.count == estimate.clusters:
        return jeffreys(math.fsum(values), estimate.count, level)
    rate = min(max(estimate.mean, 0.0), 1.0)
    alone = rate * (1.0 - rate)
    effective = float(estimate.clusters)
    if estimate.clusters > 1 and alone > 0:
        wanted = alone / estimate.error**2 if estimate.error > 0 else math.inf
        effective = min(max(wanted, effective), float(estimate.count))
    return jeffreys(rate * effective, effective, level)


def fraction_interval(values: Sequence[float], clusters: Sequence[Hashable], level: float = LEVEL) -> Interval:
    """Interval of a mean of scores that may lie between 0 and 1, which vary less than yes and no do.

    Jeffreys with the number of yes-or-no scores that would be as uncertain as these, small samples widened as Student's
    t is. Taking each fraction for one yes-or-no score would cover nearly always: an 80 % interval in name only.
    """
    estimate = clustered_mean(values, clusters, level)
    alone = estimate.mean * (1.0 - estimate.mean)
    if estimate.clusters < 2 or not estimate.error > 0 or not alone > 0 or set(values) <= {0.0, 1.0}:
        return rate_interval(values, clusters, level)
    upper = 0.5 + level / 2
    error = estimate.error * float(special.stdtrit(estimate.clusters - 1, upper) / special.ndtri(upper))
    count = alone / error**2
    return jeffreys(estimate.mean * count, count, level)


def paired_rates(gained: float, lost: float, count: int, level: float = 0.95) -> Interval:
    """Interval of the difference of two paired success rates: Wald's with z²/4 pairs added each way.

    At 95 % that is one pair each way (Bonett and Price). It keeps a width where all pairs agree or all differ, which a
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

    totals [..., clusters] are sums over a cluster, sizes [clusters] how many values it has (1 where not said).
    """
    check_level(level)
    sums = np.asarray(totals, dtype=np.float64)
    rows = sums.reshape(-1, sums.shape[-1])
    means = resampled(rows, sizes, draws, seed)
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail], axis=0)
    return low.reshape(sums.shape[:-1]), high.reshape(sums.shape[:-1])


def resampled(rows: FloatArray, sizes: ArrayLike | None, draws: int, seed: int) -> FloatArray:
    """Means [draws, rows] of clusters drawn with replacement; all rows see the same draws."""
    groups = rows.shape[-1]
    weights = np.ones(groups) if sizes is None else np.asarray(sizes, dtype=np.float64)
    rng = np.random.default_rng(seed)
    block = max(1, BLOCK // groups)
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
    """Chance that one of `k` attempts succeeds at least, without bias: 1 - C(n - c, k) / C(n, k) for c of n."""
    if not 1 <= k <= attempts or not 0 <= successes <= attempts:
        raise ValueError(f"pass@{k} needs at least {k} attempts, not {successes} successes of {attempts}")
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def _by_cluster(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The values, and for each cluster in order of appearance how many they are and their sum."""
    if len(values) != len(clusters):
        raise ValueError("every value needs its cluster")
    x = np.asarray(values, dtype=np.float64).reshape(-1)
    places: dict[Hashable, int] = {}
    index = np.array([places.setdefault(cluster, len(places)) for cluster in clusters], dtype=np.int64)
    sizes = np.bincount(index, minlength=len(places)).astype(np.float64)
    totals = np.bincount(index, weights=x, minlength=len(places)).astype(np.float64)
    return x, sizes, totals
