"""Metrics of a batch of episodes, statistics of rewards over the steps, and the file `metrics.jsonl`."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from practicum.data.jsonl import parse_object, read_lines
from practicum.data.run_folder import write_atomic
from practicum.errors import UserError
from practicum.training.estimators import num_sampled_tokens
from practicum.trajectory import Origin, Outcome, StopReason, Trajectory, Turn
from practicum.utils.arrays import FloatArray
from practicum.utils.memory import resident_megabytes


def memory_metrics() -> dict[str, float]:
    """Memory in MB: of this process, and on the GPU in use what tensors have (`allocated`), what torch has taken from
    the GPU (`reserved`), and the most that tensors had (`peak`) so far."""
    metrics = {"memory/rss_mb": resident_megabytes()}
    if torch.cuda.is_available():
        metrics["memory/gpu_allocated_mb"] = torch.cuda.memory_allocated() / 1e6
        metrics["memory/gpu_reserved_mb"] = torch.cuda.memory_reserved() / 1e6
        metrics["memory/gpu_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return metrics


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


def repetition(ids: Sequence[int], n: int = 4) -> float:
    """Return the share of a reply's n-grams that occurred in it before: 0 when all differ, near 1 in a loop."""
    count = len(ids) - n + 1
    return 1.0 - len(set(zip(*(ids[start:] for start in range(n)), strict=False))) / count if count > 0 else 0.0


def rollout_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return metrics of rewards, success, lengths, tool calls and unscored outcomes."""
    scored = [e for e in episodes if e.scored]
    metrics = {"rollout/episodes": float(len(episodes)), **summary_stats("reward", [e.reward for e in scored])}
    if scored:
        turns = sum(len(e.turns) for e in scored)
        replies = [_reply_ids(turn) for e in scored for turn in e.turns]
        lengths = [float(num_sampled_tokens(e)) for e in scored]
        num_cut = sum(t.stop_reason in (StopReason.LENGTH, StopReason.CONTEXT) for e in scored for t in e.turns)
        metrics |= {
            "success/mean": sum(e.outcome is Outcome.SUCCESS for e in scored) / len(scored),
            "rollout/turns/mean": turns / len(scored),
            "rollout/invalid_replies": sum(e.invalid_replies for e in scored) / turns,
            "rollout/tool_calls/mean": sum(len(t.action.calls) for e in scored for t in e.turns) / len(scored),
            "rollout/truncated": sum(e.outcome is Outcome.TRUNCATED for e in scored) / len(scored),
            "rollout/length_clipped": num_cut / turns,
            "rollout/repetition": sum(map(repetition, replies)) / turns,
            "rollout/groups": float(len({e.group for e in scored})),
            **summary_stats("response_length", lengths),
        }
        environments = sorted({e.task.environment for e in scored})
        for name in environments if len(environments) > 1 else ():
            own = [e for e in scored if e.task.environment == name]
            metrics |= {
                f"reward/{name}/mean": sum(e.reward for e in own) / len(own),
                f"success/{name}/mean": sum(e.outcome is Outcome.SUCCESS for e in own) / len(own),
            }
        for name in sorted({component for e in scored for component in e.components}):
            metrics |= summary_stats(f"reward_part/{name}", [e.components.get(name, 0.0) for e in scored])
    for outcome in Outcome:
        if not outcome.scored:
            metrics[f"outcome/{outcome.value}"] = float(sum(e.outcome is outcome for e in episodes))
    return metrics


def _reply_ids(turn: Turn) -> tuple[int, ...]:
    sampled = [span.ids for span in turn.spans if span.origin is Origin.SAMPLED]
    return sampled[0] if len(sampled) == 1 else tuple(itertools.chain.from_iterable(sampled))


class MetricsFile:
    """Appends one line per step, written at once and flushed.

    A new file replaces an old one; with `keep_to`, the lines of the old one up to that step are kept as they are (a
    line that a crash cut short is dropped).
    """

    def __init__(self, path: Path, keep_to: int | None = None) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if keep_to is not None and path.exists():
                write_atomic(path, b"".join(_lines_up_to(path, keep_to)))
            self._file = path.open("w" if keep_to is None else "a", encoding="utf-8")
        except OSError as error:
            raise UserError(f"Cannot write '{path}': {error.strerror}; choose another --out.") from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the metrics of a step; raises FloatingPointError if one is not finite."""
        not_finite = [name for name, value in values.items() if not math.isfinite(value)]
        if not_finite:
            raise FloatingPointError(f"step {step}: {', '.join(not_finite)} is not a finite number")
        try:
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
        except OSError as error:
            raise UserError(f"Cannot write '{self.path}': {error.strerror}; free some space.") from error

    def close(self) -> None:
        self._file.close()


def _lines_up_to(path: Path, step: int) -> Iterator[bytes]:
    for line in read_lines(path):
        try:
            line_step = parse_object(line)["step"]
        except (ValueError, KeyError, TypeError):
            continue
        if line.endswith(b"\n") and line_step <= step:
            yield line


def summary_stats(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return mean, std, min and max of a list, as `name/stat`; no metrics of an empty one."""
    if not values:
        return {}
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))
    return {f"{name}/mean": mean, f"{name}/std": deviation, f"{name}/min": min(values), f"{name}/max": max(values)}
