"""Preference: raise what was better above what was worse, measured from a reference.

A step first asks policy and reference for the log-probs of a batch of pairs, then gives the learner
every token with the weight that the loss's derivative puts on it: the gradient is the preference
loss's own, and the learner needs to know nothing of pairs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from practicum.algorithms.preferences import PairLoss, Pairs, preference_loss
from practicum.errors import UserError
from practicum.models.decoder import Decoder
from practicum.training import forward
from practicum.training.lr_schedule import learning_rate
from practicum.training.micro_batches import Sample
from practicum.training.objective import Objective
from practicum.training.optimizer import OptimizerSettings
from practicum.training.trainable_policy import TrainablePolicy


@dataclass(frozen=True)
class DPOSettings:
    """How to prefer. `batch_size` counts pairs of one update."""

    epochs: int = 2
    batch_size: int = 16
    lr: float = 5e-5
    beta: float = 0.1
    loss: str = "dpo"
    label_smoothing: float = 0.0
    warmup_ratio: float = 0.1
    schedule: str = "cosine"
    min_lr_ratio: float = 0.1
    seed: int = 0
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)

    def __post_init__(self) -> None:
        preference_loss(self.loss)
        learning_rate(0, 1, self.lr, self.schedule)
        if self.beta <= 0 or not 0 <= self.label_smoothing < 0.5:
            raise UserError("beta must be above 0, and label_smoothing from 0 to below 0.5.")


@dataclass(frozen=True)
class Pair:
    """Two replies in one state: their masks say which tokens are judged."""

    chosen: Sample
    rejected: Sample


def totals(decoder: Decoder, policy: TrainablePolicy, samples: Sequence[Sample]) -> Tensor:
    """Summed log-probs of each sample's judged tokens [N]."""
    found = forward.logprobs(decoder, samples, policy.limits)
    return torch.stack([values.double().sum() for values in found])


def judge(
    policy: TrainablePolicy, pairs: Sequence[Pair], reference: Tensor, settings: DPOSettings
) -> tuple[Pairs, PairLoss]:
    """The batch's log-probs and its loss; `reference` holds the reference's totals, chosen then rejected [2B]."""
    samples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    mine = totals(policy.decoder, policy, samples)
    lengths = torch.tensor([float(sample.mask.sum()) for sample in samples], dtype=torch.float64)
    count = len(pairs)
    batch = Pairs(mine[:count], mine[count:], reference[:count], reference[count:], lengths[:count], lengths[count:])
    return batch, preference_loss(settings.loss)(batch, settings.beta, settings.label_smoothing)


def step(
    policy: TrainablePolicy, pairs: Sequence[Pair], reference: Tensor, settings: DPOSettings, lr: float
) -> dict[str, float]:
    """One update over a batch of pairs."""
    batch, loss = judge(policy, pairs, reference, settings)
    slopes = torch.cat([loss.by_chosen, loss.by_rejected])
    samples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    # Cross-entropy is -log-prob, so a slope of the loss by a log-prob is a weight of the opposite sign.
    weighted = [
        replace(sample, weights=np.where(sample.mask, -float(slope), 0.0).astype(np.float32))
        for sample, slope in zip(samples, slopes, strict=True)
    ]
    metrics = policy.update(weighted, float(len(pairs)), Objective("ce"), lr)
    won, lost = (settings.beta * gain for gain in batch.gains)
    return {
        "dpo/loss": float(loss.loss.mean()),
        "dpo/reward_chosen": float(won.mean()),
        "dpo/reward_rejected": float(lost.mean()),
        "dpo/reward_margin": float((won - lost).mean()),
        "dpo/accuracy": float((won > lost).double().mean()),
        "actor/grad_norm": metrics["actor/grad_norm"],
        "actor/lr": lr,
        "actor/tokens": metrics["actor/tokens"],
    }


def planned_steps(pairs: int, settings: DPOSettings) -> int:
    return settings.epochs * -(-pairs // settings.batch_size)


class Preference:
    """A planned run over pairs: update N depends on N and the weights alone.

    The reference is the policy at the start, adapter and all; its log-probs are taken once, so it is not kept.
    """

    def __init__(self, policy: TrainablePolicy, pairs: Sequence[Pair], settings: DPOSettings) -> None:
        if not pairs:
            raise UserError("There is no pair to learn from: collect episodes of tasks that are solved sometimes.")
        policy.reset_optimizer(settings.optimizer)
        self.policy, self.pairs, self.settings = policy, list(pairs), settings
        samples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
        self.reference = totals(policy.decoder, policy, samples)
        self.batches: list[list[int]] = []
        for epoch in range(settings.epochs):
            order = list(range(len(pairs)))
            random.Random(f"dpo/{settings.seed}/{epoch}").shuffle(order)
            size = settings.batch_size
            self.batches += [order[begin : begin + size] for begin in range(0, len(order), size)]

    def update(self, number: int) -> dict[str, float]:
        chunk, settings, total = self.batches[number], self.settings, len(self.batches)
        wanted = self.reference[torch.tensor(chunk + [len(self.pairs) + place for place in chunk])]
        warmup = round(settings.warmup_ratio * total)
        lr = learning_rate(number, total, settings.lr, settings.schedule, warmup, settings.min_lr_ratio)
        return step(self.policy, [self.pairs[place] for place in chunk], wanted, settings, lr)


def train_dpo(
    policy: TrainablePolicy,
    pairs: Sequence[Pair],
    settings: DPOSettings,
    on_step: Callable[[int, int, dict[str, float]], None] | None = None,
) -> int:
    """Train on pairs; `on_step(step, total, metrics)` hears of every update. Returns the steps taken."""
    run = Preference(policy, pairs, settings)
    for number in range(len(run.batches)):
        metrics = run.update(number)
        if on_step is not None:
            on_step(number + 1, len(run.batches), metrics)
    return len(run.batches)
