"""The critic: the value of a state, one number for every token the policy is about to sample.

Either a two-layer head on the policy's hidden states, whose gradient does not reach the policy, or a model of
its own (`critic.model.path`) with such a head, trained as a whole. Value j belongs to the state
before token j+1, so it is computed at the token that predicts token j+1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from practicum.algorithms import losses
from practicum.config.actor_rollout_ref import CriticConfig, CriticOptimConfig
from practicum.config.fields import default_of
from practicum.models.decoder import Decoder
from practicum.training import ranks
from practicum.training.learner import OptimizerSettings, apply_gradient, make_optimizer
from practicum.training.micro_batches import MicroBatch, MicroBatchLimits, Sample
from practicum.training.objective import gather, hidden_states, per_sample, rank_micro_batches
from practicum.utils.arrays import FloatArray


@dataclass(frozen=True)
class CriticSettings:
    """How the critic is trained. `cliprange_value`: how far a value may move in one step's updates (0: no limit);
    `ppo_mini_batch_size` counts tasks (None: all of a step)."""

    lr: float = default_of(CriticOptimConfig, "lr")
    weight_decay: float = default_of(CriticOptimConfig, "weight_decay")
    grad_clip: float = default_of(CriticConfig, "grad_clip")
    vf_coef: float = default_of(CriticConfig, "vf_coef")
    cliprange_value: float = default_of(CriticConfig, "cliprange_value")
    ppo_epochs: int = default_of(CriticConfig, "ppo_epochs")
    ppo_mini_batch_size: int | None = default_of(CriticConfig, "ppo_mini_batch_size")

    @property
    def optimizer(self) -> OptimizerSettings:
        """The critic's optimizer."""
        return OptimizerSettings(self.lr, self.weight_decay, grad_clip=self.grad_clip)


class ValueHead(nn.Module):
    """Two layers from hidden states [.., E] to values [..]. The last starts at zero, so every value is 0 at first."""

    def __init__(self, hidden: int, seed: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, 1)
        generator = torch.Generator().manual_seed(seed)
        bound = math.sqrt(3.0 / hidden)
        with torch.no_grad():
            self.inner.weight.copy_((torch.rand(hidden, hidden, generator=generator) * 2 - 1) * bound)
            self.inner.bias.zero_()
            self.outer.weight.zero_()
            self.outer.bias.zero_()

    def forward(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.outer(torch.nn.functional.silu(self.inner(hidden.float())))[..., 0]
        return values


@dataclass(frozen=True)
class ValuedSample:
    """A sample with the values of its states [P] and, once known, the returns they aim at [P] (NaN: no target)."""

    sample: Sample
    values: Tensor
    returns: Tensor | None = None


class Critic:
    """Computes the values of samples and is trained towards returns.

    `own` is the critic's own model; without one the head reads the hidden states of `policy`.
    """

    def __init__(
        self,
        policy: Decoder,
        settings: CriticSettings,
        own: Decoder | None = None,
        limits: MicroBatchLimits | None = None,
        seed: int = 0,
    ) -> None:
        self.settings = settings
        self.own = own
        self.decoder = own or policy
        self.limits = limits or MicroBatchLimits()
        self.head = ValueHead(self.decoder.shape.hidden, seed).to(self.decoder.device)
        self.parameters = [*self.head.parameters(), *(own.parameters() if own is not None else ())]
        self.optimizer = make_optimizer(self.parameters, settings.optimizer)

    def values(self, samples: Sequence[Sample]) -> list[Tensor]:
        """Return the value of the state before every prediction, one tensor [P] per sample."""

        def values_of(micro: MicroBatch) -> Tensor:
            values: Tensor = self.head(hidden_states(self.decoder, micro))
            return values

        return per_sample(self.decoder, samples, self.limits, values_of)

    def update(
        self, valued: Sequence[ValuedSample], lr: float, tick: Callable[[], None] | None = None
    ) -> dict[str, float]:
        """Take one optimizer step over a mini-batch and return its metrics; predictions without a target do not count.

        Returns no metrics, and changes nothing, if there is no target at all.
        """
        num_targets = float(sum(int(item.returns.isfinite().sum()) for item in valued if item.returns is not None))
        if num_targets == 0:
            return {}
        samples = [item.sample for item in valued]
        valued = ranks.own_part(valued, lambda item: len(item.sample.ids))
        old = [item.values for item in valued]
        returns = [
            item.returns if item.returns is not None else torch.full_like(item.values, math.nan) for item in valued
        ]
        self.optimizer.zero_grad(set_to_none=True)
        loss = clipped = 0.0
        for micro, counts in rank_micro_batches(self.decoder, samples, self.limits):
            with torch.set_grad_enabled(self.own is not None):
                hidden = hidden_states(self.decoder, micro)
            if not counts:
                continue
            target, old_values = gather(micro, returns), gather(micro, old)
            has_target = target.isfinite()
            value_losses, was_clipped = losses.value_loss(
                self.head(hidden)[has_target], old_values[has_target], target[has_target], self.settings.cliprange_value
            )
            # `value_loss` has the factor 1/2 already.
            micro_loss = value_losses.sum() * (2 * self.settings.vf_coef) / num_targets
            torch.autograd.backward(micro_loss)
            loss += float(micro_loss.detach())
            clipped += float(was_clipped.float().sum()) / num_targets
            if tick is not None:
                tick()
        loss, clipped = ranks.sum_floats((loss, clipped))
        norm = apply_gradient(self.optimizer, self.parameters, self.settings.optimizer, lr, lambda: loss)
        return {"critic/vf_loss": loss, "critic/vf_clipfrac": clipped, "critic/grad_norm": norm, "critic/lr": lr}


def with_next_state(sample: Sample, next_ids: Sequence[int]) -> Sample:
    """Return the sample with one more prediction: that of the first token of the turn that would have come next.

    `next_ids` are the prompt's ids between the last reply and that turn. The value must be read there: states before
    sampled tokens are what a critic is trained on, and the state after a reply's last token is none of them.
    """
    end = int(np.flatnonzero(sample.mask)[-1]) + 1
    added = len(next_ids) + 1

    def extended(array: Any) -> Any:
        return np.append(array[:end], np.zeros(added, dtype=array.dtype))

    mask = extended(sample.mask)
    mask[-1] = True
    return Sample(
        (*sample.ids[:end], *next_ids, 0),
        mask,
        extended(sample.weights),
        extended(sample.advantages),
        extended(sample.sampling_logprobs),
        sample.temperature,
    )


def explained_variance(values: FloatArray, returns: FloatArray) -> float:
    """Return 1 - Var(returns - values) / Var(returns): 1 is perfect, 0 no better than a constant."""
    variance = float(np.var(returns))
    return 0.0 if variance == 0 else 1.0 - float(np.var(returns - values)) / variance
