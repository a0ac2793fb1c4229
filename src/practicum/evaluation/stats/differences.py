"""The mean difference of two policies on the same tasks, when scores lie in [0, 1]: an interval and a test that agree.

Tasks that share a goal, and attempts at one task, are not independent. Neither does a difference have to be ±1 or 0:
one policy may have one attempt and the other eight, or one a score of 0 or 1 and the other a graded one. The observed
differences then hide how much they could vary (twenty failures of a policy that succeeds once in ten have no spread at
all), so pairs that go each way are added to them, as Bonett and Price do for flags.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from practicum.evaluation.stats.intervals import LEVEL, Interval, by_cluster, clustered_mean, t_quantile

MAX_Z = 8.0
"""Normal quantile at which the search for a p-value ends: p = 1e-15."""


@dataclass(frozen=True, slots=True)
class DifferenceEstimate:
    """The interval of a mean difference, the p-value at which it would touch 0, and the deviation of a cluster."""

    interval: Interval
    p_value: float
    deviation: float


@dataclass(frozen=True, slots=True)
class _Sample:
    """What interval and p-value depend on: `pairs` independent pairs of this mean and variance."""

    mean: float
    variance: float
    pairs: float
    share: float
    clusters: int
    effective_clusters: float

    def limits(self, z: float) -> tuple[float, float]:
        """The centre and the margin of the interval at the level of this normal quantile."""
        added = self.share * z * z / 2
        total = self.pairs + added
        centre = self.pairs * self.mean / total
        second = (self.pairs * (self.variance + self.mean**2) + added) / total
        error = math.sqrt(max(0.0, second - centre**2) / total)
        return centre, z * self._widening(z) * error

    def _widening(self, z: float) -> float:
        """Student's t for scores that are not 0 or 1, and for clusters of very different size."""
        if self.clusters < 2:
            return 1.0
        level = 2 * float(special.ndtr(z)) - 1
        equal, unequal = (
            t_quantile(num_clusters, level) for num_clusters in (float(self.clusters), self.effective_clusters)
        )
        return (1 + (1 - self.share) * max(0.0, equal / z - 1)) * max(1.0, unequal / equal)

    def p_value(self) -> float:
        def outside(z: float) -> float:
            centre, margin = self.limits(z)
            return abs(centre) - margin

        if self.mean == 0 or outside(1e-3) <= 0:
            return 1.0
        z = MAX_Z if outside(MAX_Z) > 0 else float(optimize.brentq(outside, 1e-3, MAX_Z, xtol=1e-9))
        return 2 * float(special.ndtr(-z))


def bounded_difference(
    differences: Sequence[float],
    clusters: Sequence[Hashable],
    level: float = LEVEL,
    share: float = 1.0,
    attempts: float = 1.0,
) -> DifferenceEstimate:
    """Estimate the mean of differences of scores in [0, 1].

    `share` says how much the scores are like 0 or 1 (`intervals.zero_one_share`): so much of z²/4 pairs is added each
    way. `attempts` is how many pairs of attempts a task has, at most: the number of independent pairs, by the standard
    error, is taken to lie between the effective number of clusters and all of them.
    """
    values, _, _ = by_cluster(differences, clusters)
    if len(values) == 0:
        return DifferenceEstimate(Interval(-1.0, 1.0, level), 1.0, math.nan)
    estimate = clustered_mean(differences, clusters, level)
    up, down = float(np.maximum(values, 0).mean()), float(np.maximum(-values, 0).mean())
    flags = max(0.0, up + down - (up - down) ** 2)
    least = estimate.effective_clusters
    if estimate.clusters < 2 or estimate.error == 0:  # equal differences are no certainty on a known scale
        variance, pairs, share = flags, least, 1.0
        deviation = flags_deviation(up * least, down * least, least)
    else:
        most = max(least, len(values) * attempts / max(share, 1e-9))
        pairs = min(max(flags / estimate.error**2, least), most)
        variance = estimate.error**2 * pairs
        deviation = estimate.error * math.sqrt(estimate.clusters)
    sample = _Sample(estimate.mean, variance, pairs, share, estimate.clusters, least)
    centre, margin = sample.limits(float(special.ndtri(0.5 + level / 2)))
    interval = Interval(max(-1.0, centre - margin), min(1.0, centre + margin), level)
    return DifferenceEstimate(interval, sample.p_value(), deviation)


def flags_deviation(gained: float, lost: float, count: float) -> float:
    """Standard deviation of paired differences of flags, with one pair added each way so that it is never 0."""
    up, down = (gained + 1) / (count + 2), (lost + 1) / (count + 2)
    return math.sqrt(up + down - (up - down) ** 2)


def agreeing(interval: Interval, p_value: float, alpha: float) -> Interval:
    """The interval, holding 0 where the test does not reject it and excluding 0 where it does.

    The two differ by a hair at most: interval and test of a rate are two approximations. A limit that is moved off 0
    becomes the smallest number beyond it.
    """
    if p_value >= alpha:
        return Interval(min(interval.low, 0.0), max(interval.high, 0.0), interval.level)
    if interval.low <= 0 <= interval.high:
        if interval.high > -interval.low:
            return Interval(math.ulp(0.0), interval.high, interval.level)
        return Interval(interval.low, -math.ulp(0.0), interval.level)
    return interval
