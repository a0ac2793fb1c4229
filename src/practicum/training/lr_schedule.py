"""Learning-rate schedules."""

from __future__ import annotations

import math

from practicum.errors import UserError, did_you_mean

KINDS = ("constant", "cosine")


def learning_rate(
    step: int, total: int, peak: float, kind: str = "constant", warmup: int = 0, min_ratio: float = 0.1
) -> float:
    """Return the rate of a step from 0: linear warm-up, then constant or a cosine down to `min_ratio` of the peak."""
    if kind not in KINDS:
        raise UserError(f"Unknown learning-rate schedule '{kind}'.{did_you_mean(kind, KINDS)}")
    if step < warmup:
        return peak * (step + 1) / warmup
    if kind == "constant":
        return peak
    progress = (step - warmup) / max(1, total - warmup - 1)
    return peak * (min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
