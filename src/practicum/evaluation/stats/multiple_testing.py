"""Corrections for many tests at once, and for the same test repeated with more data."""

from __future__ import annotations

import math
from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the chance of even one false finding among all tests stays at the level.

    Written by hand: scipy corrects only the false discovery rate.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, highest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def look_penalty(looks: int) -> float:
    """What alpha is divided by at each of several planned looks at growing data.

    More than the number of looks: how much data is added depends on what was seen, most where it is near the limit, and
    dividing by the number alone then gives 6.5 % instead of 5 with five looks. The factor is calibrated by simulation
    of looks that add what the last one needs for a power of 80 %, at most once, or up to a hundred thousand times, as
    much as there is.
    """
    return looks * (1 + math.log(looks) / 4)
