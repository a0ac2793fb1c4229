"""One policy over several environments (founding paper 003's aggregate metrics)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from practicum.evaluation.result import EvalResult, mean


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Means over environments. An environment in which nothing was scored takes no part."""

    environments: int
    episodes: int
    weighted_accuracy: float
    """Share of scores above ½, environments weighted by their scored episodes."""
    weighted_mean_score: float
    """Mean score, weighted likewise."""
    overall_success_rate: float
    """Mean over environments of their success rates, each counting the same."""


def aggregate(examinations: Sequence[EvalResult]) -> Aggregate:
    scored = [examination for examination in examinations if examination.scored]
    rewards = [sitting.reward for examination in scored for sitting in examination.scored]
    if not scored:
        return Aggregate(0, 0, math.nan, math.nan, math.nan)
    return Aggregate(
        environments=len(scored),
        episodes=len(rewards),
        weighted_accuracy=mean([float(reward > 0.5) for reward in rewards]),
        weighted_mean_score=mean(rewards),
        overall_success_rate=mean([examination.success_rate for examination in scored]),
    )
