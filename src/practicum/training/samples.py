"""Trajectories to samples: the one place where origins become loss masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from practicum.algorithms import objectives
from practicum.errors import UserError
from practicum.training.batch import Sample
from practicum.trajectory import Trajectory


def imitation_samples(episodes: Sequence[Trajectory]) -> list[Sample]:
    """Every token that the demonstrator wrote, and nothing else, with weight one."""
    return [
        sample for episode in episodes if episode.scored for sample in _samples(episode, 0.0, 1.0, needs_logprobs=False)
    ]


def practice_samples(
    groups: Sequence[Sequence[Trajectory]],
    advantages: Sequence[Sequence[float]],
    aggregation: str,
    temperature: float,
    norm: float = 1.0,
) -> tuple[list[Sample], float]:
    """Sampled tokens painted with their trajectory's advantage, and the batch's denominator.

    A trajectory counts as one sequence for aggregation, however many runs of ids it holds. Episodes
    with advantage zero add nothing to the loss; they are counted in the denominator and left out.
    """
    flat = [
        (episode, advantage)
        for g, a in zip(groups, advantages, strict=True)
        for episode, advantage in zip(g, a, strict=True)
    ]
    lengths = [sum(sum(run.sampled) for run in episode.sequences()) for episode, _ in flat]
    weights, denominator = objectives.token_weights(lengths, aggregation, norm)
    samples: list[Sample] = []
    for (episode, advantage), weight in zip(flat, weights, strict=True):
        if advantage != 0.0:
            samples += _samples(episode, advantage, weight, needs_logprobs=True, temperature=temperature)
    return samples, denominator


def _samples(
    episode: Trajectory, advantage: float, weight: float, *, needs_logprobs: bool, temperature: float = 1.0
) -> list[Sample]:
    samples = []
    for run in episode.sequences():
        mask = np.array(run.sampled, dtype=np.bool_)
        if not mask.any():
            continue
        if needs_logprobs and any(value is None for value, on in zip(run.logprobs, mask, strict=True) if on):
            raise UserError(
                f"Episode '{episode.task.id}' has no sampling log-probs, so it cannot be used for policy gradients; "
                "collect it with an engine that reports them."
            )
        logprobs = np.array([0.0 if value is None else value for value in run.logprobs], dtype=np.float32)
        painted = np.where(mask, advantage, 0.0).astype(np.float32)
        weights = np.where(mask, weight, 0.0).astype(np.float32)
        samples.append(Sample(run.ids, mask, weights, painted, logprobs, temperature))
    return samples
