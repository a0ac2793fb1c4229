"""Trajectories to samples: the one place where origins become loss masks."""

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


def sft_samples(episodes: Sequence[Trajectory]) -> list[Sample]:
    """Every token that the demonstrator wrote, and nothing else, with weight one."""
    return [
        replace(sample, weights=sample.mask.astype(np.float32))
        for episode in episodes
        if episode.scored
        for sample in unweighted_samples(episode)
    ]


@dataclass(frozen=True)
class WeightedTrajectory:
    """One trajectory ready for the learner; `share` is what it adds to a batch's denominator."""

    samples: tuple[Sample, ...]
    share: float

    @property
    def flat(self) -> bool:
        """Whether no token has an advantage."""
        return not any(sample.advantages.any() for sample in self.samples)


def build_samples(
    groups: Sequence[Sequence[Trajectory]],
    advantages: Sequence[Sequence[FloatArray]],
    aggregation: str,
    temperature: float,
    norm: float = 1.0,
) -> list[list[WeightedTrajectory]]:
    """Sampled tokens painted with advantages and weights.

    `advantages` holds one number a sampled token of each trajectory. A trajectory counts as one
    sequence for aggregation, however many runs of ids it holds.
    """
    return [
        [
            _lesson(episode, painted, aggregation, temperature, norm)
            for episode, painted in zip(group, rows, strict=True)
        ]
        for group, rows in zip(groups, advantages, strict=True)
    ]


def collate(taught: Iterable[WeightedTrajectory], keep_all: bool = False) -> tuple[list[Sample], float]:
    """The samples of a batch and its denominator.

    Where all advantages are zero the policy gradient is zero: such a trajectory is counted in the
    denominator and left out, unless `keep_all` says that another loss (entropy, KL) wants its tokens too.
    """
    taught = list(taught)
    samples = [sample for lesson in taught if keep_all or not lesson.flat for sample in lesson.samples]
    return samples, float(sum(lesson.share for lesson in taught))


def _lesson(
    episode: Trajectory, painted: FloatArray, aggregation: str, temperature: float, norm: float
) -> WeightedTrajectory:
    _check_logprobs(episode)
    lengths = turn_lengths(episode)
    (by_turn,), share = token_weights([lengths], aggregation, norm)
    weights = np.repeat(np.array(by_turn, dtype=np.float32), lengths) if lengths else np.zeros(0, dtype=np.float32)
    samples = []
    used = 0
    for ids, mask, known in _written(episode):
        place = slice(used, used + int(np.count_nonzero(mask)))
        samples.append(Sample(ids, mask, _laid(mask, weights[place]), _laid(mask, painted[place]), known, temperature))
        used = place.stop
    return WeightedTrajectory(tuple(samples), share)


def scatter(sample: Sample, values: FloatArray | Float32Array) -> Float32Array:
    """Numbers of the predicted tokens laid out over all tokens of a sample [T]."""
    return _laid(sample.mask, values)


def _laid(mask: BoolArray, values: FloatArray | Float32Array) -> Float32Array:
    result = np.zeros(len(mask), dtype=np.float32)
    result[mask] = values
    return result


def unweighted_samples(episode: Trajectory, temperature: float = 1.0) -> list[Sample]:
    """An episode's runs of ids with their masks and sampling log-probs; runs without a sampled token are left out."""
    samples = []
    for ids, mask, known in _written(episode):
        nothing = np.zeros(len(ids), dtype=np.float32)
        samples.append(Sample(ids, mask, nothing, nothing, known, temperature))
    return samples


def _written(episode: Trajectory) -> Iterator[tuple[tuple[int, ...], BoolArray, Float32Array]]:
    """The same as ids, masks and log-probs, 0 where there is none."""
    for run in episode.runs():
        ids = tuple(itertools.chain.from_iterable(span.ids for span in run))
        mask, known = np.zeros(len(ids), dtype=np.bool_), np.zeros(len(ids), dtype=np.float32)
        start, found = 0, False
        for span in run:
            end = start + len(span.ids)
            if span.origin is Origin.SAMPLED and end > start:
                mask[start:end] = found = True
                if span.logprobs is not None:
                    known[start:end] = span.logprobs
            start = end
        if found:
            yield ids, mask, known


def _check_logprobs(episode: Trajectory) -> None:
    for span in (span for turn in episode.turns for span in turn.spans):
        if span.logprobs is None and span.origin is Origin.SAMPLED and span.ids:
            raise UserError(
                f"Episode '{episode.task.id}' has no sampling log-probs, so it cannot be used for policy gradients; "
                "collect it with an engine that reports them."
            )
