"""Statistics of reward and verifier over the steps of a run: what the reward-hacking monitor compares.

A verifier is a score that nothing is trained on. Windows of steps are compared by how far each of the two scores rose.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from practicum.trajectory import Trajectory
from practicum.utils.arrays import FloatArray

VERIFIER = "verifier"
"""The reward component that is the verifier's score."""


@dataclass(frozen=True, slots=True)
class ScoreStats:
    """A score over the episodes of one step: mean, variance over episodes, squared standard error of the mean."""

    mean: float
    variance: float
    squared_error: float

    def record(self) -> dict[str, float]:
        return {"mean": self.mean, "variance": self.variance, "error": self.squared_error}

    @classmethod
    def from_record(cls, record: Mapping[str, float]) -> ScoreStats:
        return cls(record["mean"], record["variance"], record["error"])


@dataclass(frozen=True, slots=True)
class StepStats:
    """What is kept of a step. `agreement`: rank correlation of the two scores, None where one of them does not vary."""

    step: int
    num_groups: int
    reward: ScoreStats
    verifier: ScoreStats
    agreement: float | None
    components: Mapping[str, float]  # the mean of each reward component

    def record(self) -> dict[str, Any]:
        """Return the record in JSON's own types; its keys are those of checkpoints written so far."""
        return {
            "step": self.step,
            "groups": self.num_groups,
            "reward": self.reward.record(),
            "verifier": self.verifier.record(),
            "agreement": self.agreement,
            "parts": dict(self.components),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> StepStats:
        reward, verifier = (ScoreStats.from_record(record[name]) for name in ("reward", "verifier"))
        return cls(record["step"], record["groups"], reward, verifier, record["agreement"], record["parts"])


def step_stats(step: int, episodes: Sequence[Trajectory], verifier: Sequence[float]) -> StepStats:
    """Return the statistics of one step from its episodes and the verifier's score of each."""
    rewards = np.array([episode.reward for episode in episodes], dtype=np.float64)
    verified = np.array(verifier, dtype=np.float64)
    groups = [episode.group for episode in episodes]
    names = sorted({name for episode in episodes for name in episode.components} - {VERIFIER})
    both_vary = len(rewards) > 2 and np.ptp(rewards) > 0 and np.ptp(verified) > 0
    return StepStats(
        step,
        len(set(groups)),
        _score_stats(rewards, groups),
        _score_stats(verified, groups),
        _rank_correlation(rewards, verified) if both_vary else None,
        {name: math.fsum(episode.components.get(name, 0.0) for episode in episodes) / len(episodes) for name in names},
    )


def _score_stats(values: FloatArray, groups: Sequence[str]) -> ScoreStats:
    """Episodes of one task are alike: the groups were drawn independently, and standard errors are taken over them."""
    count, mean = len(values), float(values.mean())
    index = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    if len(index) < 2:  # one task only: its episodes are all there is
        return ScoreStats(mean, float(values.var()), float(values.var(ddof=1)) / count)
    totals = np.bincount([index[group] for group in groups], values - mean)
    squared_error = float((totals * totals).sum()) * len(index) / (len(index) - 1) / count**2
    return ScoreStats(mean, float(values.var()), squared_error)


def _rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Spearman's: the correlation of the ranks, ties sharing theirs.

    Not `scipy.stats.spearmanr`: it rounds differently in the last bit, which `metrics.jsonl` would show.
    """
    a, b = stats.rankdata(first), stats.rankdata(second)
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / math.sqrt(float((a * a).sum() * (b * b).sum())))


@dataclass(frozen=True, slots=True)
class ScoreRise:
    """How far a score rose between two windows, divided by `scale` into [-1, 1], and its standard error."""

    scaled: float
    error: float
    scale: float

    @property
    def z_score(self) -> float:
        """The rise in standard errors. Scores without any spread leave no doubt; rounding counts as no rise."""
        if abs(self.scaled) < 1e-9:
            return 0.0
        return self.scaled / self.error if self.error > 0 else math.copysign(math.inf, self.scaled)


@dataclass(frozen=True, slots=True)
class WindowComparison:
    """Two windows of steps compared: how far each score rose since the last step of the earlier one."""

    since_step: int
    reward: ScoreRise
    verifier: ScoreRise

    @property
    def gap(self) -> float:
        """The rise of the reward less that of the verifier."""
        return self.reward.scaled - self.verifier.scaled


def compare_windows(before: Sequence[StepStats], now: Sequence[StepStats]) -> WindowComparison:
    """Return how far reward and verifier rose from one window of steps to another."""
    return WindowComparison(
        before[-1].step,
        score_rise([step.reward for step in before], [step.reward for step in now]),
        score_rise([step.verifier for step in before], [step.verifier for step in now]),
    )


def score_rise(before: Sequence[ScoreStats], now: Sequence[ScoreStats]) -> ScoreRise:
    """Return the difference of two windows' means over twice the standard deviation of all their episodes.

    That is 1 when the windows do not overlap at all and 0 when they are alike, whatever unit the score has. The scale
    is at least a hundredth of the means, so that the last digits of a constant score are no movement.
    """
    old, new = mean([score.mean for score in before]), mean([score.mean for score in now])
    difference = new - old
    within = (mean([score.variance for score in before]) + mean([score.variance for score in now])) / 2
    scale = max(2 * math.sqrt(within + (difference / 2) ** 2), 0.01 * max(abs(old), abs(new)), 1e-12)
    error = math.sqrt(_squared_error_of_mean(before) + _squared_error_of_mean(now))
    return ScoreRise(difference / scale, error / scale, scale)


def _squared_error_of_mean(window: Sequence[ScoreStats]) -> float:
    return math.fsum([score.squared_error for score in window]) / len(window) ** 2


def mean(values: Sequence[float]) -> float:
    """Return the mean, summed without rounding."""
    return math.fsum(values) / len(values)


def mean_verifier(window: Sequence[StepStats]) -> float:
    """Return the mean of the verifier's score over a window of steps."""
    return mean([step.verifier.mean for step in window])


def component_shares(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of each reward component in all reward, by absolute value, as metrics.

    The verifier is no component of the reward.
    """
    totals: dict[str, float] = {}
    for episode in episodes:
        for name, value in episode.components.items():
            if name != VERIFIER:
                totals[name] = totals.get(name, 0.0) + abs(value)
    total = math.fsum(totals.values())
    return {f"hacking/share/{name}": totals[name] / total for name in sorted(totals)} if total > 0 else {}
