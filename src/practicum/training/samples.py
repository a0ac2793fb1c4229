"""Trajectories to samples: the one place where origins become loss masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from practicum.algorithms import objectives
from practicum.algorithms.advantages import Floats
from practicum.errors import UserError
from practicum.training.batch import Sample
from practicum.training.estimators import sampled_count
from practicum.trajectory import Trajectory


def imitation_samples(episodes: Sequence[Trajectory]) -> list[Sample]:
    """Every token that the demonstrator wrote, and nothing else, with weight one."""
    samples: list[Sample] = []
    for episode in episodes:
        if episode.scored:
            samples += _samples(episode, np.zeros(sampled_count(episode)), 1.0)
    return samples


def practice_samples(
    groups: Sequence[Sequence[Trajectory]],
    advantages: Sequence[Sequence[Floats]],
    aggregation: str,
    temperature: float,
    norm: float = 1.0,
    keep_all: bool = False,
) -> tuple[list[Sample], float]:
    """Sampled tokens painted with their advantages, and the batch's denominator.

    `advantages` holds one number a sampled token of each trajectory. A trajectory counts as one
    sequence for aggregation, however many runs of ids it holds. Where all advantages are zero the
    policy gradient is zero: such a trajectory is counted in the denominator and left out, unless
    `keep_all` says that another loss (entropy, KL) wants its tokens too.
    """
    flat = [
        (episode, painted)
        for group, rows in zip(groups, advantages, strict=True)
        for episode, painted in zip(group, rows, strict=True)
    ]
    weights, denominator = objectives.token_weights([sampled_count(e) for e, _ in flat], aggregation, norm)
    samples: list[Sample] = []
    for (episode, painted), weight in zip(flat, weights, strict=True):
        if keep_all or np.any(painted):
            _check_logprobs(episode)
            samples += _samples(episode, painted, weight, temperature)
    return samples, denominator


def _check_logprobs(episode: Trajectory) -> None:
    for run in episode.sequences():
        if any(value is None for value, on in zip(run.logprobs, run.sampled, strict=True) if on):
            raise UserError(
                f"Episode '{episode.task.id}' has no sampling log-probs, so it cannot be used for policy gradients; "
                "collect it with an engine that reports them."
            )


def _samples(episode: Trajectory, painted: Floats, weight: float, temperature: float = 1.0) -> list[Sample]:
    samples = []
    used = 0
    for run in episode.sequences():
        mask = np.array(run.sampled, dtype=np.bool_)
        count = int(mask.sum())
        if count == 0:
            continue
        advantages = np.zeros(len(run.ids), dtype=np.float32)
        advantages[mask] = painted[used : used + count]
        used += count
        logprobs = np.array([0.0 if value is None else value for value in run.logprobs], dtype=np.float32)
        weights = np.where(mask, weight, 0.0).astype(np.float32)
        samples.append(Sample(run.ids, mask, weights, advantages, logprobs, temperature))
    return samples
