"""Preference optimisation (DPO, IPO, KTO): raise chosen replies above rejected ones, relative to a reference.

An update first computes the log-probs of a batch of pairs under policy and reference, then gives the learner every
token with the weight that the derivative of the loss puts on it: the gradient is that of the preference loss, and the
learner needs no notion of pairs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from practicum.algorithms.preferences import PairLogprobs, PairLoss, preference_loss
from practicum.config.dpo import DPOTrainingConfig
from practicum.config.fields import check_fields, default_of
from practicum.errors import UserError
from practicum.models.decoder import Decoder
from practicum.training.learner import learning_rate
from practicum.training.micro_batches import Sample
from practicum.training.objective import CROSS_ENTROPY, compute_logprobs
from practicum.training.run import Run
from practicum.training.settings import RunSettings
from practicum.training.supervised import SupervisedTrainer, UpdateSettings, fingerprint_samples
from practicum.training.trainable_policy import TrainablePolicy


@dataclass(frozen=True)
class DPOSettings(UpdateSettings):
    """How to train on preference pairs, under the names of the configuration's keys.

    One update is over `batch_size * gradient_accumulation_steps` pairs.
    """

    num_epochs: int = default_of(DPOTrainingConfig, "num_epochs")
    batch_size: int = default_of(DPOTrainingConfig, "batch_size")
    gradient_accumulation_steps: int = default_of(DPOTrainingConfig, "gradient_accumulation_steps")
    learning_rate: float = default_of(DPOTrainingConfig, "learning_rate")
    warmup_ratio: float = default_of(DPOTrainingConfig, "warmup_ratio")
    weight_decay: float = default_of(DPOTrainingConfig, "weight_decay")
    max_grad_norm: float = default_of(DPOTrainingConfig, "max_grad_norm")
    scheduler_type: str = default_of(DPOTrainingConfig, "scheduler_type")
    min_lr_ratio: float = default_of(DPOTrainingConfig, "min_lr_ratio")
    beta: float = default_of(DPOTrainingConfig, "beta")
    loss: str = default_of(DPOTrainingConfig, "loss")
    label_smoothing: float = default_of(DPOTrainingConfig, "label_smoothing")
    seed: int = default_of(DPOTrainingConfig, "seed")

    def __post_init__(self) -> None:
        check_fields(self, "training.")
        preference_loss(self.loss)
        learning_rate(0, 1, self.learning_rate, self.scheduler_type)


@dataclass(frozen=True)
class Pair:
    """Two replies in one state; their masks select the tokens that are compared."""

    chosen: Sample
    rejected: Sample


def sum_logprobs(decoder: Decoder, policy: TrainablePolicy, samples: Sequence[Sample]) -> Tensor:
    """Summed log-probs of each sample's masked tokens [N]."""
    logprobs = compute_logprobs(decoder, samples, policy.limits)
    return torch.stack([values.double().sum() for values in logprobs])


def pair_loss(
    policy: TrainablePolicy, pairs: Sequence[Pair], reference: Tensor, settings: DPOSettings
) -> tuple[PairLogprobs, PairLoss]:
    """The log-probs of a batch and its loss; `reference` holds the reference's sums, chosen then rejected [2B]."""
    samples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    sums = sum_logprobs(policy.decoder, policy, samples)
    lengths = torch.tensor([float(sample.mask.sum()) for sample in samples], dtype=torch.float64)
    count = len(pairs)
    batch = PairLogprobs(
        sums[:count], sums[count:], reference[:count], reference[count:], lengths[:count], lengths[count:]
    )
    return batch, preference_loss(settings.loss)(batch, settings.beta, settings.label_smoothing)


def dpo_update(
    policy: TrainablePolicy, pairs: Sequence[Pair], reference: Tensor, settings: DPOSettings, lr: float
) -> dict[str, float]:
    """Do one update over a batch of pairs; returns its metrics."""
    batch, loss = pair_loss(policy, pairs, reference, settings)
    slopes = torch.cat([loss.grad_chosen, loss.grad_rejected])
    samples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    # Cross-entropy is -log-prob, so a slope of the loss by a log-prob is a weight of the opposite sign.
    weighted = [
        replace(sample, weights=np.where(sample.mask, -float(slope), 0.0).astype(np.float32))
        for sample, slope in zip(samples, slopes, strict=True)
    ]
    metrics = policy.update(weighted, float(len(pairs)), CROSS_ENTROPY, lr)
    chosen_rewards, rejected_rewards = (settings.beta * gain for gain in batch.log_ratios)
    return {
        "dpo/loss": float(loss.loss.mean()),
        "dpo/reward_chosen": float(chosen_rewards.mean()),
        "dpo/reward_rejected": float(rejected_rewards.mean()),
        "dpo/reward_margin": float((chosen_rewards - rejected_rewards).mean()),
        "dpo/accuracy": float((chosen_rewards > rejected_rewards).double().mean()),
        "actor/grad_norm": metrics["actor/grad_norm"],
        "actor/lr": lr,
        "actor/tokens": metrics["actor/tokens"],
    }


class DPOTrainer(SupervisedTrainer):
    """Trains a policy on pairs.

    The reference is the policy at the start, adapter included; its log-probs are computed once, so it is not kept.
    """

    def __init__(self, policy: TrainablePolicy, pairs: Sequence[Pair], settings: DPOSettings) -> None:
        if not pairs:
            raise UserError("There is no pair to learn from: collect episodes of tasks that are solved sometimes.")
        policy.reset_optimizer(settings.optimizer)
        self.pairs, self.settings = list(pairs), settings
        samples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
        self.reference = sum_logprobs(policy.decoder, policy, samples)
        self.batches: list[list[int]] = []
        for epoch in range(settings.num_epochs):
            order = list(range(len(pairs)))
            random.Random(f"dpo/{settings.seed}/{epoch}").shuffle(order)
            size = settings.update_size
            self.batches += [order[start : start + size] for start in range(0, len(order), size)]
        fingerprint = fingerprint_samples(side for pair in pairs for side in (pair.chosen, pair.rejected))
        super().__init__(policy, len(self.batches), fingerprint)

    def update(self, step: int) -> dict[str, float]:
        indices, settings, total = self.batches[step], self.settings, len(self.batches)
        reference = self.reference[torch.tensor(indices + [len(self.pairs) + index for index in indices])]
        warmup = round(settings.warmup_ratio * total)
        lr = learning_rate(step, total, settings.learning_rate, settings.scheduler_type, warmup, settings.min_lr_ratio)
        return dpo_update(self.policy, [self.pairs[index] for index in indices], reference, settings, lr)


async def train_dpo(
    policy: TrainablePolicy,
    pairs: Sequence[Pair],
    settings: DPOSettings,
    folder: Path | None = None,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> int:
    """Train on pairs and return the number of updates; metrics are written below `folder`."""
    trainer = DPOTrainer(policy, pairs, settings)
    plan = RunSettings(trainer.num_steps, val_before_train=False, early_stopping_patience=None, save_on_stop=False)
    return (await Run(folder, trainer, plan, on_step=on_step).train()).step
