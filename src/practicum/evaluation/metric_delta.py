"""One metric of two policies on the same tasks: both values, the difference, its interval and its test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from practicum.evaluation.gates import relative_improvement
from practicum.evaluation.result import mean
from practicum.evaluation.stats.differences import agreeing, bounded_difference, flags_deviation
from practicum.evaluation.stats.intervals import (
    LEVEL,
    Interval,
    by_cluster,
    clustered_mean,
    paired_rate_interval,
    zero_one_share,
)
from practicum.evaluation.stats.paired import is_mid_p, mcnemar, permutation_test
from practicum.evaluation.stats.power import (
    mcnemar_detectable,
    mcnemar_tasks_needed,
    minimum_detectable,
    tasks_needed,
)

MCNEMAR, EXACT_MCNEMAR = "mid-p McNemar", "exact McNemar"
PERMUTATION, UNTESTED = "paired permutation", "not tested"


@dataclass(frozen=True)
class MetricDelta:
    """A metric of the baseline and of the trained policy. A `rate` lies between 0 and 1 and is printed in percent."""

    name: str
    rate: bool
    baseline: float
    trained: float
    interval: Interval
    p_value: float
    """NaN where a test would say nothing (`UNTESTED`)."""
    test: str
    num_tasks: int
    num_clusters: int
    """Independent units: tasks with the same content are one, and so are tasks with the same goal."""
    deviation: float
    """Standard deviation of the difference over the clusters, from which the power is computed."""
    gained: int | None = None
    lost: int | None = None

    @property
    def difference(self) -> float:
        return self.trained - self.baseline

    @property
    def improvement(self) -> float | None:
        """Relative, as HTDAG prints it; None where the baseline is zero."""
        return relative_improvement(self.baseline, self.trained)

    @property
    def alpha(self) -> float:
        """Chance of a false finding at which this metric is tested."""
        return 1 - self.interval.level

    @property
    def minimum_detectable(self) -> float:
        """The smallest difference that this many tasks show with a power of 0.8; inf where there is none."""
        if self.gained is not None and self.lost is not None:
            # Half a task is added: that nothing was lost here does not mean that nothing ever is.
            loss = (min(self.gained, self.lost) + 0.5) / (self.num_clusters + 1)
            return mcnemar_detectable(loss, self.num_clusters, self.alpha)
        if 0.5 ** (self.num_clusters - 1) >= self.alpha:  # even all signs alike are not rare enough
            return math.inf
        smallest = minimum_detectable(self.deviation, self.num_clusters, self.alpha)
        return smallest if not self.rate or smallest <= 1 else math.inf

    @property
    def num_tasks_needed(self) -> int | None:
        """Tasks that a difference of this size needs for a power of 0.8; None: no number suffices."""
        if self.gained is not None and self.lost is not None and self.num_tasks:
            gain, loss = self.gained / self.num_tasks, self.lost / self.num_tasks
            return mcnemar_tasks_needed(gain, loss, self.alpha)
        needed = tasks_needed(self.difference, self.deviation, self.alpha)
        return None if needed is None else math.ceil(needed * self.num_tasks / max(1, self.num_clusters))

    @property
    def num_more_tasks(self) -> int | None:
        """Tasks to add for a power of 0.8 at a difference of this size; 0: these suffice; None: no number does."""
        needed = self.num_tasks_needed
        return None if needed is None else max(0, needed - self.num_tasks)

    def is_significant(self, p_value: float | None = None) -> bool:
        """Whether the test rejects chance; `p_value` is a corrected one to use instead."""
        return (self.p_value if p_value is None else p_value) < self.alpha

    def reversed(self) -> MetricDelta:
        """Return the difference with the two policies exchanged."""
        return replace(
            self, baseline=self.trained, trained=self.baseline, gained=self.lost, lost=self.gained,
            interval=replace(self.interval, low=-self.interval.high, high=-self.interval.low),
        )  # fmt: skip

    def record(self) -> dict[str, Any]:
        return {
            "metric": self.name,
            "baseline": finite(self.baseline),
            "trained": finite(self.trained),
            "improvement": self.improvement,
            "difference": finite(self.difference),
            "low": finite(self.interval.low),
            "high": finite(self.interval.high),
            "level": self.interval.level,
            "p_value": finite(self.p_value),
            "test": self.test,
            "tasks": self.num_tasks,
            "clusters": self.num_clusters,
            "gained": self.gained,
            "lost": self.lost,
        }


def metric_delta(
    name: str,
    first: Mapping[str, float],
    second: Mapping[str, float],
    clusters: Mapping[str, str],
    *,
    rate: bool,
    bounded: bool | None = None,
    level: float = LEVEL,
    share: float | None = None,
    attempts: int = 1,
    tested: bool = True,
    draws: int = 20_000,
) -> MetricDelta:
    """Compare a number that both policies have for the same tasks; `clusters` gives the independent unit of each task.

    Success or failure of independent tasks: McNemar's test. Anything else (scores, several attempts, tasks that
    repeat or share a goal): the signs of whole clusters are exchanged, and the p-value is at least the interval's own.
    The interval holds 0 where the test does not reject. `bounded` numbers lie between 0 and 1, as rates do; `share`
    says how much single attempts are like 0 or 1 (by default as much as the values of the tasks are), `attempts` how
    many attempts both policies have per task.
    """
    bounded = rate if bounded is None else bounded
    common = [task for task in first if task in second]
    before, after = [first[task] for task in common], [second[task] for task in common]
    names = [clusters[task] for task in common]
    differences = [b - a for a, b in zip(before, after, strict=True)]
    num_clusters = len(set(names))
    gained = lost = None
    if bounded and num_clusters == len(common) and {*before, *after} <= {0.0, 1.0}:
        gained, lost = differences.count(1.0), differences.count(-1.0)
        interval, p = paired_rate_interval(gained, lost, num_clusters, level), mcnemar(gained, lost, num_clusters)
        test = MCNEMAR if is_mid_p(gained + lost, num_clusters) else EXACT_MCNEMAR
        deviation = flags_deviation(gained, lost, num_clusters)
    else:
        _, sizes, totals = by_cluster(differences, names)
        flips, test = float(permutation_test(totals, sizes, draws)), PERMUTATION
        if bounded:
            share = max(zero_one_share(np.asarray(side)) for side in (before, after)) if share is None else share
            estimate = bounded_difference(differences, names, level, share, attempts)
            interval, p, deviation = estimate.interval, max(flips, estimate.p_value), estimate.deviation
        else:
            interval, p, deviation = _unbounded(differences, names, level, flips)
    if not tested:
        p, test = math.nan, UNTESTED
    elif bounded or num_clusters > 1:
        interval = agreeing(interval, p, 1 - level)
    return MetricDelta(
        name, rate, mean(before), mean(after), interval, p, test, len(common), num_clusters, deviation, gained, lost
    )


def _unbounded(
    differences: Sequence[float], names: Sequence[str], level: float, flips: float
) -> tuple[Interval, float, float]:
    """Interval, p-value and deviation over clusters of differences on any scale: those of Student's t."""
    estimate = clustered_mean(differences, names, level)
    p = flips
    if estimate.error > 0:
        degrees = max(estimate.effective_clusters - 1.0, 1.0)
        p = max(p, 2 * float(special.stdtr(degrees, -abs(estimate.mean) / estimate.error)))
    return estimate.interval, p, estimate.error * math.sqrt(estimate.clusters)


def finite(value: float | None) -> float | None:
    """The value, or None where it is NaN or infinite, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None
