"""The smallest difference that a number of tasks can show, and the number that a difference needs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from practicum.evaluation.stats.paired import MAX_MID_P_SHARE
from practicum.utils.arrays import FloatArray

POWER = 0.80
"""Default probability of finding a true difference."""
MAX_TASKS = 10_000_000
"""Numbers of tasks beyond this are not reported."""
MAX_EXACT_TASKS = 2_000
"""Numbers of tasks up to which McNemar's power is summed exactly; beyond, it is that of a t-test."""


def paired_power(effect: float, count: float, alpha: float = 0.05) -> float:
    """Power of a two-sided paired t-test; `effect` is the mean difference in its standard deviations."""
    if count < 2:
        return 0.0
    limit, shift = float(special.stdtrit(count - 1, 1 - alpha / 2)), abs(effect) * math.sqrt(count)
    power = 1.0 - float(special.nctdtr(count - 1, shift, limit))
    if math.isnan(power):  # scipy has gaps for large counts; Abramowitz & Stegun 26.7.10, good to 1e-7 there
        middle, wide = limit * (1 - 1 / (4 * (count - 1))), math.sqrt(1 + limit**2 / (2 * (count - 1)))
        power = float(special.ndtr((shift - middle) / wide))
    far = float(special.nctdtr(count - 1, shift, -limit))
    return power + (0.0 if math.isnan(far) else far)  # a tail too thin for scipy is none


def minimum_detectable(deviation: float, count: int, alpha: float = 0.05, power: float = POWER) -> float:
    """The smallest mean difference that `count` tasks find with this power; inf for fewer than two tasks."""
    if count < 2:
        return math.inf
    if deviation == 0:
        return 0.0
    # The power goes to 1 with the effect: widen until the answer is bracketed.
    high = 1.0
    while paired_power(high, count, alpha) < power:
        high *= 2
    effect = optimize.brentq(lambda e: paired_power(e, count, alpha) - power, 0.0, high, xtol=1e-13)
    return float(effect) * deviation


@functools.lru_cache(maxsize=64)
def least_significant(alpha: float, size: int, exact: bool = False) -> NDArray[np.int64]:
    """The smallest number gained that McNemar's mid-p test rejects at alpha [size], by the total gained or lost.

    Where no number does, one more than the total. `exact`: that of the exact test.
    """
    totals, observed = np.arange(size), 2 if exact else 1
    count = np.asarray(stats.binom.isf(alpha / 2, totals, 0.5), dtype=np.int64)
    for candidate in (count + 1, count, count - 1):  # mid-p rejects one earlier than the exact test, at most
        p = 2 * stats.binom.sf(candidate, totals, 0.5) + observed * stats.binom.pmf(candidate, totals, 0.5)
        count = np.where((p < alpha) & (2 * candidate > totals), candidate, count)
    p = 2 * stats.binom.sf(count, totals, 0.5) + observed * stats.binom.pmf(count, totals, 0.5)
    return np.asarray(np.where((p < alpha) & (count <= totals), count, totals + 1), dtype=np.int64)


def mcnemar_power(gain: float, loss: float, count: int, alpha: float = 0.05) -> float:
    """Power of `paired.mcnemar` on `count` tasks, each of which is gained or lost with these probabilities.

    Summed over the number of tasks gained or lost, which is what the test conditions on: normal approximations promise
    80 % where ten tasks give 55 %.
    """
    differing = min(1.0, gain + loss)
    if count < 1 or differing <= 0:
        return 0.0
    spread = 8 * math.sqrt(count * differing * (1 - differing)) + 8
    low, high = max(0, int(count * differing - spread)), min(count, int(count * differing + spread) + 1)
    totals = np.arange(low, high + 1)
    size = 1 << (count + 1).bit_length()  # few sizes, so that the critical numbers are computed once for most counts
    by_mid_p, by_exact = (least_significant(alpha, size, exact)[low : high + 1] for exact in (False, True))
    needed, share = np.where(totals <= MAX_MID_P_SHARE * count, by_mid_p, by_exact), min(1.0, gain / differing)
    # bdtrc(k, n, p) is the chance of more than k, bdtr that of at most k; below zero there is nothing.
    more = special.bdtrc(needed - 1.0, totals, share)
    fewer = np.where(totals >= needed, special.bdtr(np.maximum(totals - needed, 0.0), totals, share), 0.0)
    return float(_binomial_mass(totals, count, differing) @ (np.where(needed <= totals, more, 0.0) + fewer))


def _binomial_mass(counts: NDArray[np.int64], total: int, rate: float) -> FloatArray:
    """The probability of each number of successes in `total` trials."""
    ways = special.gammaln(total + 1) - special.gammaln(counts + 1) - special.gammaln(total - counts + 1)
    return np.asarray(np.exp(ways + special.xlogy(counts, rate) + special.xlog1py(total - counts, -rate)))


def mcnemar_detectable(loss: float, count: int, alpha: float = 0.05, power: float = POWER) -> float:
    """The smallest difference of two success rates that `count` tasks find with this power; inf where none is.

    `loss` is the share of tasks that go the other way.
    """
    largest = 1.0 - 2 * loss
    if largest <= 0 or mcnemar_power(1.0 - loss, loss, count, alpha) < power:
        return math.inf
    low, high = 0.0, largest
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if mcnemar_power(loss + middle, loss, count, alpha) >= power else (middle, high)
    return high


def mcnemar_tasks_needed(gain: float, loss: float, alpha: float = 0.05, power: float = POWER) -> int | None:
    """The number of tasks that find a difference of gain - loss with this power; None where no number does."""
    deviation = math.sqrt(max(0.0, gain + loss - (gain - loss) ** 2))
    approximate = tasks_needed(gain - loss, deviation, alpha, power)
    if approximate is None or approximate > MAX_EXACT_TASKS:
        return approximate
    return _smallest(lambda count: mcnemar_power(gain, loss, count, alpha) >= power, max(1, approximate // 2))


def tasks_needed(difference: float, deviation: float, alpha: float = 0.05, power: float = POWER) -> int | None:
    """The number of tasks that find a difference of this size with this power; None where no number does."""
    if difference == 0 or not math.isfinite(difference) or not math.isfinite(deviation):
        return None
    if deviation == 0:
        return 2
    effect = abs(difference) / deviation
    return _smallest(lambda count: paired_power(effect, count, alpha) >= power)


def _smallest(enough: Callable[[int], bool], guess: int = 1) -> int | None:
    """The smallest number of tasks that is enough, given that more tasks find more; None beyond MAX_TASKS."""
    low, high = (guess, 2 * guess) if guess == 1 or not enough(guess) else (1, guess)
    while not enough(high):
        low, high = high, 2 * high
        if high > MAX_TASKS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
