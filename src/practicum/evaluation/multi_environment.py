"""One policy over several environments: Affine's aggregate metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from practicum.evaluation.policy_results import PolicyResults
from practicum.evaluation.result import EvalResult, mean
from practicum.evaluation.stats.intervals import LEVEL, Interval, by_cluster, resampled_means


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


def overall_interval(results: Sequence[EvalResult], level: float = LEVEL) -> Interval:
    """The interval of the unweighted mean of the environments' success rates; (0, 1) where nothing was scored.

    The distances from each environment's rate to its limits are added as independent errors are (MOVER): the ends of
    the scale keep the asymmetry of their own intervals, which a standard error would lose.
    """
    scored = [result for result in results if result.scored]
    if not scored:
        return Interval(0.0, 1.0, level)
    rates = [result.success_rate for result in scored]
    limits = [result.interval(level) for result in scored]
    below = math.hypot(*(rate - limit.low for rate, limit in zip(rates, limits, strict=True)))
    above = math.hypot(*(limit.high - rate for rate, limit in zip(rates, limits, strict=True)))
    return Interval(mean(rates) - below / len(scored), mean(rates) + above / len(scored), level)


def aggregate_record(results: Sequence[EvalResult], level: float = LEVEL) -> dict[str, float | None]:
    """The aggregates as JSON, the overall success rate with its interval."""
    limits = overall_interval(results, level)
    values = asdict(aggregate(results)) | {"overall_low": limits.low, "overall_high": limits.high, "level": level}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def frontier_shares(policies: Sequence[PolicyResults], draws: int = 2_000, seed: int = 0) -> dict[str, float | None]:
    """How often each policy is on the Pareto frontier when the tasks are drawn again, as a share of the draws.

    In every environment whole clusters of tasks are drawn with replacement, the same for all policies, from the tasks
    that all of them have a score for. None where there is no such task.
    """
    panels = list(policies[0].results)
    means = []
    for index, panel in enumerate(panels):
        results = [policy.results[panel] for policy in policies]
        rates = [result.success_by_task() for result in results]
        common = [task for task in rates[0] if all(task in other for other in rates)]
        if not common:
            return {policy.name: None for policy in policies}
        names = [results[0].clusters[task] for task in common]
        grouped = [by_cluster([rate[task] for task in common], names) for rate in rates]
        means.append(
            resampled_means(np.stack([totals for _, _, totals in grouped]), grouped[0][1], draws, seed + index)
        )
    scores = np.round(np.stack(means, axis=-1), 12)  # [draws, policies, panels]
    ahead, behind = scores[:, None] >= scores[:, :, None], scores[:, None] > scores[:, :, None]
    dominated = np.any(np.all(ahead, axis=-1) & np.any(behind, axis=-1), axis=2)
    shares = 1.0 - dominated.mean(axis=0)
    return {policy.name: float(share) for policy, share in zip(policies, shares, strict=True)}
