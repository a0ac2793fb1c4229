"""One policy over several environments: Affine's aggregate metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from practicum.evaluation.result import EvalResult, mean


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Means over environments; one in which nothing was scored takes no part."""

    environments: int
    episodes: int
    weighted_accuracy: float
    """Share of scores above 0.5, environments weighted by their scored episodes."""
    weighted_mean_score: float
    """Mean score, environments weighted by their scored episodes."""
    overall_success_rate: float
    """Unweighted mean of the environments' success rates."""


def aggregate(results: Sequence[EvalResult]) -> Aggregate:
    """Aggregate one policy's results, one per environment; NaN where nothing was scored."""
    scored = [result for result in results if result.scored]
    rewards = [attempt.reward for result in scored for attempt in result.scored]
    if not scored:
        return Aggregate(0, 0, math.nan, math.nan, math.nan)
    return Aggregate(
        environments=len(scored),
        episodes=len(rewards),
        weighted_accuracy=mean([float(reward > 0.5) for reward in rewards]),
        weighted_mean_score=mean(rewards),
        overall_success_rate=mean([result.success_rate for result in scored]),
    )
