"""One metric of two policies on the same tasks: both values, the difference, its interval and its test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from practicum.evaluation.gates import relative_improvement
from practicum.evaluation.result import mean
from practicum.evaluation.stats.intervals import Interval, clustered_mean, paired_rate_interval
from practicum.evaluation.stats.paired import mcnemar, permutation_test
from practicum.evaluation.stats.power import minimum_detectable, tasks_needed

MCNEMAR, PERMUTATION = "exact McNemar", "paired permutation"


@dataclass(frozen=True)
class MetricDelta:
    """A metric of the baseline and of the trained policy. A `rate` lies between 0 and 1 and is printed in percent."""

    name: str
    rate: bool
    baseline: float
    trained: float
    interval: Interval
    p_value: float
    test: str
    num_tasks: int
    num_clusters: int
    """Distinct tasks: two ids with the same content are one."""
    deviation: float
    """Standard deviation of the difference over distinct tasks, from which the power is computed."""
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
    def minimum_detectable(self) -> float:
        """The smallest difference that this many tasks show with a power of 0.8."""
        return minimum_detectable(self.deviation, self.num_clusters, 1 - self.interval.level)

    @property
    def num_more_tasks(self) -> int | None:
        """Tasks to add for a power of 0.8 at a difference of this size; 0: these suffice; None: no number does."""
        needed = tasks_needed(self.difference, self.deviation, 1 - self.interval.level)
        return None if needed is None else max(0, needed - self.num_clusters)

    def is_significant(self, p_value: float | None = None) -> bool:
        """Whether both the test and the interval exclude chance; `p_value` is a corrected one to use instead."""
        p = self.p_value if p_value is None else p_value
        return p < 1 - self.interval.level and self.interval.clear_of_zero

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
            "p_value": self.p_value,
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
    level: float = 0.95,
) -> MetricDelta:
    """Compare a number that both policies have for the same tasks; `clusters` gives the hash of each task's content.

    Success or failure of distinct tasks: McNemar's exact test. Anything else (scores, several attempts, tasks that
    repeat): a paired permutation test and a t interval over distinct tasks. `bounded` numbers lie between 0 and 1, as
    rates do.
    """
    bounded = rate if bounded is None else bounded
    common = [task for task in first if task in second]
    before, after = [first[task] for task in common], [second[task] for task in common]
    differences = [b - a for a, b in zip(before, after, strict=True)]
    names = [clusters[task] for task in common]
    distinct = len(set(names))
    estimate = clustered_mean(differences, names, level)
    deviation = estimate.error * math.sqrt(distinct)
    gained = lost = None
    if bounded and distinct == len(common) and {*before, *after} <= {0.0, 1.0}:
        gained, lost = differences.count(1.0), differences.count(-1.0)
        interval, p, test = paired_rate_interval(gained, lost, distinct, level), mcnemar(gained, lost), MCNEMAR
        deviation = _deviation_of_flags(gained, lost, distinct)
    else:
        interval, test = estimate.interval, PERMUTATION
        p = float(permutation_test(list(_totals_by_cluster(differences, names).values())))
        if bounded:
            if estimate.error == 0 or math.isnan(estimate.error):  # equal differences are no certainty on a known scale
                up, down = max(0.0, estimate.mean) * distinct, max(0.0, -estimate.mean) * distinct
                interval = paired_rate_interval(up, down, distinct, level)
                deviation = _deviation_of_flags(up, down, distinct)
            interval = Interval(max(-1.0, interval.low), min(1.0, interval.high), level)
    return MetricDelta(
        name, rate, mean(before), mean(after), interval, p, test, len(common), distinct, deviation, gained, lost
    )


def finite(value: float | None) -> float | None:
    """The value, or None where it is NaN or infinite, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def _deviation_of_flags(gained: float, lost: float, count: int) -> float:
    """Standard deviation of paired differences of flags, with one pair added each way so that it is never 0."""
    up, down = (gained + 1) / (count + 2), (lost + 1) / (count + 2)
    return math.sqrt(up + down - (up - down) ** 2)


def _totals_by_cluster(values: list[float], names: list[str]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for value, name in zip(values, names, strict=True):
        totals[name] = totals.get(name, 0.0) + value
    return totals
