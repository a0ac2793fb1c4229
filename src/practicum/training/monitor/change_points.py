"""What a series of a run did: how often it turned back, and since which step it has fallen to nearly nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, takewhile
from statistics import NormalDist
from typing import NamedTuple

from practicum.evaluation.stats.intervals import jeffreys

COLLAPSE_INTERVAL_LEVEL = 0.999
"""Level of the intervals that a collapse is judged by: the best of many steps is compared, so chance is at work."""
FALSE_ALARMS = 0.005
"""Share of steady runs that may be reported as fallen, shared among all steps at which the fall could have begun."""
NEARLY_NOTHING = 0.25
"""Share of the rate before a fall that the rate since must be below."""
STEPS_BEFORE, STEPS_SINCE = 2, 3


class Fall(NamedTuple):
    """A rate that fell: the first step of those since, what it was before, and the rate of all steps since."""

    since: int
    before: float
    after: float


def fall_from_best(points: Sequence[tuple[int, float, float]], share: float) -> Fall | None:
    """Return the fall of the last two or more steps below this share of the best step; points are as below.

    The best step is taken at the lower end of its interval, all steps since the fall together at the upper end.
    """
    lows = [jeffreys(round(rate * count, 6), count, COLLAPSE_INTERVAL_LEVEL).low for _, rate, count in points]
    best = max(lows, default=0.0)
    fallen = list(takewhile(lambda point: point[1] < share * best, reversed(points)))
    if len(fallen) < 2:
        return None
    total = math.fsum(count for _, _, count in fallen)
    solved = math.fsum(rate * count for _, rate, count in fallen)
    if jeffreys(round(solved, 6), total, COLLAPSE_INTERVAL_LEVEL).high >= share * best:
        return None
    return Fall(fallen[-1][0], best, solved / total)


def fall_to_nothing(points: Sequence[tuple[int, float, float]]) -> Fall | None:
    """Return the likeliest fall of a success rate to nearly nothing that chance does not explain.

    Points are (step, rate, tasks of the step). All steps before the fall are taken together, and all since: a step of
    eight tasks says little, three of them after two say enough. The test is the likelihood ratio of two rates against
    one. The first steps are compared most; the later a fall is said to begin, the surer it must be, so that long runs
    are not reported more often than short ones.
    """
    solved = list(accumulate((rate * count for _, rate, count in points), initial=0.0))
    tasks = list(accumulate((count for _, _, count in points), initial=0.0))
    likeliest, best = None, 0.0
    for index in range(STEPS_BEFORE, len(points) - STEPS_SINCE + 1):
        earlier, later = (solved[index], tasks[index]), (solved[-1] - solved[index], tasks[-1] - tasks[index])
        if min(earlier[1], later[1]) <= 0:
            continue
        before, after = earlier[0] / earlier[1], max(0.0, later[0] / later[1])
        if after >= NEARLY_NOTHING * before:
            continue
        ratio = _log_likelihood(*earlier) + _log_likelihood(*later) - _log_likelihood(solved[-1], tasks[-1])
        by_chance = NormalDist().cdf(-math.sqrt(2 * max(0.0, ratio)))
        if by_chance < FALSE_ALARMS / (index * (index + 1)) and ratio > best:
            likeliest, best = Fall(points[index][0], before, after), ratio
    return likeliest


def _log_likelihood(solved: float, tasks: float) -> float:
    """Return the log-likelihood of `solved` of `tasks` under the rate that makes it largest."""
    return sum(part * math.log(part / tasks) for part in (solved, tasks - solved) if part > 0)


def reversals(values: Sequence[float], size: float) -> int:
    """How often the series turns back by at least `size` from its last high or low.

    A steady rise has no reversal however steep it is, and noise smaller than `size` has none however long it lasts.
    """
    if not values:
        return 0
    high = low = values[0]
    direction, count = 0, 0
    for value in values[1:]:
        high, low = max(high, value), min(low, value)
        if direction >= 0 and value <= high - size:
            count += direction > 0
            direction, low = -1, value
        elif direction <= 0 and value >= low + size:
            count += direction < 0
            direction, high = 1, value
    return count
