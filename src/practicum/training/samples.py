"""Trajectories to samples: the one place where the origins of tokens become loss masks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from practicum.algorithms.aggregation import token_weights
from practicum.errors import UserError
from practicum.training.estimators import turn_lengths
from practicum.training.micro_batches import Sample
from practicum.trajectory import Origin, Trajectory
from practicum.utils.arrays import BoolArray, Float32Array, FloatArray


@dataclass(frozen=True)
class WeightedTrajectory:
    """One trajectory ready for the learner; `share` is what it adds to the denominator of a batch."""

    samples: tuple[Sample, ...]
    share: float

    @property
    def has_no_advantage(self) -> bool:
        """Whether the advantage of every token is zero."""
        return not any(sample.advantages.any() for sample in self.samples)


def sft_samples(episodes: Sequence[Trajectory]) -> list[Sample]:
    """Return the samples of scored episodes; every token that the demonstrator wrote has weight one, no other any."""
    return [
        replace(sample, weights=sample.mask.astype(np.float32))
        for episode in episodes
        if episode.scored
        for sample in unweighted_samples(episode)
    ]


def unweighted_samples(episode: Trajectory, temperature: float = 1.0) -> list[Sample]:
    """Return a sample per sequence of an episode, with mask and sampling log-probs, weights and advantages zero.

    Sequences without a sampled token are left out.
    """
    samples = []
    for ids, mask, logprobs in _sequences(episode):
        zeros = np.zeros(len(ids), dtype=np.float32)
        samples.append(Sample(ids, mask, zeros, zeros, logprobs, temperature))
    return samples


def build_samples(
    groups: Sequence[Sequence[Trajectory]],
    advantages: Sequence[Sequence[FloatArray]],
    aggregation: str,
    temperature: float,
    norm: float = 1.0,
) -> list[list[WeightedTrajectory]]:
    """Return the trajectories of every group with an advantage and a weight on each sampled token.

    `advantages` holds, for each trajectory, one number per sampled token. A trajectory counts as one
    sequence for aggregation, however many sequences of ids it consists of.
    """
    return [
        [
            _weighted_trajectory(episode, own, aggregation, temperature, norm)
            for episode, own in zip(group, group_advantages, strict=True)
        ]
        for group, group_advantages in zip(groups, advantages, strict=True)
    ]


def _weighted_trajectory(
    episode: Trajectory, advantages: FloatArray, aggregation: str, temperature: float, norm: float
) -> WeightedTrajectory:
    _check_logprobs(episode)
    lengths = turn_lengths(episode)
    (turn_weights,), share = token_weights([lengths], aggregation, norm)
    weights = np.repeat(np.array(turn_weights, dtype=np.float32), lengths) if lengths else np.zeros(0, dtype=np.float32)
    samples = []
    start = 0
    for ids, mask, logprobs in _sequences(episode):
        own = slice(start, start + int(np.count_nonzero(mask)))
        own_weights, own_advantages = _scatter(mask, weights[own]), _scatter(mask, advantages[own])
        samples.append(Sample(ids, mask, own_weights, own_advantages, logprobs, temperature))
        start = own.stop
    return WeightedTrajectory(tuple(samples), share)


def collate(trajectories: Iterable[WeightedTrajectory], keep_all: bool = False) -> tuple[list[Sample], float]:
    """Return the samples of a batch and its denominator.

    Where all advantages are zero the policy gradient is zero: such a trajectory is counted in the
    denominator and left out, unless `keep_all` says that another loss (entropy, KL) needs its tokens too.
    """
    trajectories = list(trajectories)
    samples = [
        sample
        for trajectory in trajectories
        if keep_all or not trajectory.has_no_advantage
        for sample in trajectory.samples
    ]
    return samples, float(sum(trajectory.share for trajectory in trajectories))


def scatter(sample: Sample, values: FloatArray | Float32Array) -> Float32Array:
    """Return values of the predicted tokens [P] at their positions in the sample [T], zero elsewhere."""
    return _scatter(sample.mask, values)


def _scatter(mask: BoolArray, values: FloatArray | Float32Array) -> Float32Array:
    result = np.zeros(len(mask), dtype=np.float32)
    result[mask] = values
    return result


def _sequences(episode: Trajectory) -> Iterator[tuple[tuple[int, ...], BoolArray, Float32Array]]:
    """Ids, loss mask [T] and sampling log-probs [T] (0 where there is none) of each sequence with a sampled token."""
    for spans in episode.runs():
        ids = tuple(itertools.chain.from_iterable(span.ids for span in spans))
        mask, logprobs = np.zeros(len(ids), dtype=np.bool_), np.zeros(len(ids), dtype=np.float32)
        start, any_sampled = 0, False
        for span in spans:
            end = start + len(span.ids)
            if span.origin is Origin.SAMPLED and end > start:
                mask[start:end] = any_sampled = True
                if span.logprobs is not None:
                    logprobs[start:end] = span.logprobs
            start = end
        if any_sampled:
            yield ids, mask, logprobs


def _check_logprobs(episode: Trajectory) -> None:
    for span in (span for turn in episode.turns for span in turn.spans):
        if span.logprobs is None and span.origin is Origin.SAMPLED and span.ids:
            raise UserError(
                f"Episode '{episode.task.id}' has no sampling log-probs, so it cannot be used for policy gradients; "
                "collect it with an engine that reports them."
            )
