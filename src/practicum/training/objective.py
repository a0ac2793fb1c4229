"""The objective: the loss of each prediction of a micro-batch, and the sums its metrics are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.algorithms import kl, losses
from practicum.config.actor_rollout_ref import ActorConfig, PolicyLossConfig
from practicum.config.fields import default_of
from practicum.errors import UserError, did_you_mean
from practicum.training.micro_batches import MicroBatch


@dataclass(frozen=True)
class Objective:
    """What is minimised: cross-entropy (`ce`) or the policy gradient (`pg`), plus entropy and reference-KL terms.

    `pg` reads the advantages and the old log-probs of the samples; `ce` ignores both. `loss_mode` names the surrogate:
    the clipped one (vanilla), GSPO's or CISPO's. A coefficient of 0 leaves its term out.
    """

    kind: str = "pg"
    clip_ratio_low: float = default_of(ActorConfig, "clip_ratio_low")
    clip_ratio_high: float = default_of(ActorConfig, "clip_ratio_high")
    clip_ratio_c: float = default_of(ActorConfig, "clip_ratio_c")
    entropy_coeff: float = default_of(ActorConfig, "entropy_coeff")
    kl_loss_coef: float = default_of(ActorConfig, "kl_loss_coef")
    kl_loss_type: str = default_of(ActorConfig, "kl_loss_type")
    loss_mode: str = default_of(PolicyLossConfig, "loss_mode")

    def __post_init__(self) -> None:
        if self.kind not in ("pg", "ce"):
            raise ValueError(f"no objective '{self.kind}'")
        if self.loss_mode not in losses.POLICY_LOSSES:
            hint = did_you_mean(self.loss_mode, losses.POLICY_LOSSES)
            raise UserError(f"Unknown actor_rollout_ref.actor.policy_loss.loss_mode '{self.loss_mode}'.{hint}")
        kl.check(self.kl_loss_type)

    @property
    def uses_sequence_ratio(self) -> bool:
        """Whether the surrogate needs the log-probs of a whole sequence before the loss of any of its tokens."""
        return self.kind == "pg" and self.loss_mode == "gspo"

    def sequence_log_ratios(self, logprobs: Tensor, micro: MicroBatch) -> Tensor | None:
        """Return the log-ratio of each prediction's sequence [P], or None if the surrogate does not use it."""
        if not self.uses_sequence_ratio:
            return None
        return losses.sequence_log_ratios(logprobs, micro.old_logprobs, micro.sample_index)

    def token_losses(
        self, logprobs: Tensor, entropy: Tensor, micro: MicroBatch, chunk: slice, log_ratios: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each prediction of a chunk [C] and, detached, the figures to sum up [C].

        `logprobs`, `entropy` and `log_ratios` are [C]; `chunk` selects the predictions of the micro-batch.
        """
        stats: dict[str, Tensor] = {"entropy": entropy.detach(), "logprob": logprobs.detach()}
        if self.kind == "ce":
            return -logprobs, stats
        old, advantages = micro.old_logprobs[chunk], micro.advantages[chunk]
        surrogate = self._policy_loss(logprobs, old, advantages, log_ratios)
        token_losses = surrogate.loss * micro.corrections[chunk]
        mismatch = (logprobs.detach() - micro.sampling_logprobs[chunk]).abs()
        stats |= {
            "pg_loss": token_losses.detach(),
            "clipped": surrogate.clipped.float(),
            "clipped_low": surrogate.clipped_low.float(),
            "ppo_kl": old - logprobs.detach(),
            "mismatch": mismatch,
            "mismatch_max": mismatch,
        }
        if self.entropy_coeff:
            token_losses = token_losses - self.entropy_coeff * entropy
        return token_losses, stats

    def _policy_loss(
        self, logprobs: Tensor, old: Tensor, advantages: Tensor, log_ratios: Tensor | None
    ) -> losses.PolicyLoss:
        if log_ratios is not None:
            return losses.gspo(logprobs, log_ratios, advantages, self.clip_ratio_low, self.clip_ratio_high)
        if self.loss_mode == "cispo":
            return losses.cispo(logprobs, old, advantages, self.clip_ratio_high)
        return losses.ppo(logprobs, old, advantages, self.clip_ratio_low, self.clip_ratio_high, self.clip_ratio_c)


CROSS_ENTROPY = Objective("ce", entropy_coeff=0.0, kl_loss_coef=0.0)
"""Supervised fine-tuning: the mean negative log-prob of the trained tokens."""


class LossStats:
    """Sums over the predictions of a batch, which become its metrics.

    `add` only launches work on a GPU; the host waits for it when a sum is first read.
    """

    def __init__(self) -> None:
        self._loss = 0.0
        self.count = 0
        self.sums: dict[str, float] = {}
        self.max_mismatch = 0.0
        self._pending: list[tuple[list[str], Tensor]] = []

    def add(self, loss: Tensor, stats: dict[str, Tensor]) -> None:
        """Add the loss of a chunk and its figures [C] each."""
        self.count += len(stats["logprob"])
        mismatch = stats.pop("mismatch_max", None)
        values = [loss.double()[None], torch.stack(list(stats.values())).double().sum(1)]
        names = list(stats)
        if mismatch is not None:
            values.append(mismatch.max().double()[None])
            names.append("mismatch_max")
        self._pending.append((names, torch.cat(values)))

    def _read_pending(self) -> None:
        for names, tensor in self._pending:
            loss, *values = tensor.tolist()
            self._loss += loss
            for name, value in zip(names, values, strict=True):
                if name == "mismatch_max":
                    self.max_mismatch = max(self.max_mismatch, value)
                else:
                    self.sums[name] = self.sums.get(name, 0.0) + value
        self._pending.clear()

    @property
    def loss(self) -> float:
        """The loss of everything added so far."""
        self._read_pending()
        return self._loss

    def merge(self, other: LossStats) -> None:
        """Add the sums of another batch."""
        self._loss = self.loss + other.loss
        self.count += other.count
        self.max_mismatch = max(self.max_mismatch, other.max_mismatch)
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def metrics(self, kind: str) -> dict[str, float]:
        """Return the metrics of an objective of this kind: the loss and the means over predictions."""
        loss = self.loss
        mean = {name: value / self.count for name, value in self.sums.items()}
        metrics = {"actor/loss": loss, "actor/tokens": float(self.count), "actor/entropy": mean["entropy"]}
        if kind == "ce":
            return metrics | {"sft/perplexity": math.exp(min(50.0, -mean["logprob"]))}
        metrics |= {
            "actor/pg_loss": mean["pg_loss"],
            "actor/pg_clipfrac": mean["clipped"],
            "actor/pg_clipfrac_lower": mean["clipped_low"],
            "actor/ppo_kl": mean["ppo_kl"],
            "mismatch/logprob/mean": mean["mismatch"],
            "mismatch/logprob/max": self.max_mismatch,
        }
        for name in ("kl", "kl_loss"):
            if name in mean:
                metrics[f"actor/{name}"] = mean[name]
        return metrics
