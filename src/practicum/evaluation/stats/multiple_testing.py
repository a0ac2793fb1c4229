"""Correction of p-values for many tests at once."""

from __future__ import annotations

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
