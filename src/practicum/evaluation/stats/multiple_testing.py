"""Many tests at once: p-values corrected so that one lucky environment or mode does not pass for a finding."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the chance of even one false finding among all stays at the level."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected, highest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's correction: the expected share of false ones among all findings stays at the level."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place], reverse=True)
    corrected, lowest = [1.0] * len(p_values), 1.0
    for rank, place in enumerate(order):
        lowest = min(lowest, p_values[place] * len(p_values) / (len(p_values) - rank))
        corrected[place] = lowest
    return corrected
