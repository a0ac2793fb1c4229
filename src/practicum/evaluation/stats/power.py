"""The smallest difference that a number of tasks can show, and the number that a difference needs."""

from __future__ import annotations

import math

from scipy import optimize, special

POWER = 0.80
"""Default probability of finding a true difference."""
MAX_TASKS = 10_000_000
"""Numbers of tasks beyond this are not reported."""


def paired_power(effect: float, count: float, alpha: float = 0.05) -> float:
    """Power of a two-sided paired t-test; `effect` is the mean difference in its standard deviations."""
    if count < 2:
        return 0.0
    limit, shift = float(special.stdtrit(count - 1, 1 - alpha / 2)), abs(effect) * math.sqrt(count)
    near = 1.0 - float(special.nctdtr(count - 1, shift, limit))
    if math.isnan(near):  # scipy has gaps for large counts; Abramowitz & Stegun 26.7.10, good to 1e-7 there
        middle, wide = limit * (1 - 1 / (4 * (count - 1))), math.sqrt(1 + limit**2 / (2 * (count - 1)))
        near = float(special.ndtr((shift - middle) / wide))
    far = float(special.nctdtr(count - 1, shift, -limit))
    return near + (0.0 if math.isnan(far) else far)  # a tail too thin for scipy is none


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


def tasks_needed(difference: float, deviation: float, alpha: float = 0.05, power: float = POWER) -> int | None:
    """The number of tasks that find a difference of this size with this power; None where no number does."""
    if difference == 0 or not math.isfinite(difference) or not math.isfinite(deviation):
        return None
    if deviation == 0:
        return 2
    effect = abs(difference) / deviation
    low, high = 1, 2
    while paired_power(effect, high, alpha) < power:
        low, high = high, 2 * high
        if high > MAX_TASKS:
            return None
    while high - low > 1:  # power rises with the number of tasks
        middle = (low + high) // 2
        low, high = (low, middle) if paired_power(effect, middle, alpha) >= power else (middle, high)
    return high
