"""The critic: what a state is worth, one number for every token the policy is about to sample.

Either a two-layer head that reads the policy's hidden states and leaves them alone, or a model of
its own (`critic.model.path`) with such a head, trained as a whole. Value j belongs to the state
before token j+1, the same place its log-prob is read from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from practicum.algorithms import losses
from practicum.models.decoder import Decoder
from practicum.training import forward
from practicum.training.micro_batches import MicroBatchLimits, Sample, micro_batches
from practicum.training.optimizer import OptimizerSettings, apply_gradient, make_optimizer
from practicum.utils.arrays import FloatArray


@dataclass(frozen=True)
class CriticSettings:
    """How the critic learns. `clip`: how far a value may move in one step's updates (0: no bound)."""

    lr: float = 1e-3
    clip: float = 0.5
    epochs: int = 1
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)


class ValueHead(nn.Module):
    """Two layers from a hidden state to a number. The last one starts at zero: no opinion before evidence."""

    def __init__(self, hidden: int, seed: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, 1)
        drawn = torch.Generator().manual_seed(seed)
        bound = math.sqrt(3.0 / hidden)
        with torch.no_grad():
            self.inner.weight.copy_((torch.rand(hidden, hidden, generator=drawn) * 2 - 1) * bound)
            self.inner.bias.zero_()
            self.outer.weight.zero_()
            self.outer.bias.zero_()

    def forward(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.outer(torch.nn.functional.silu(self.inner(hidden.float())))[..., 0]
        return values


@dataclass(frozen=True)
class ValuedSample:
    """One sample with its states' values and, once credited, what they should have been (NaN: no target)."""

    sample: Sample
    values: Tensor  # [P]
    returns: Tensor | None = None


class Critic:
    """Values for samples, and updates towards returns."""

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
        """The value of the state before every prediction of each sample."""
        of: Callable[..., Tensor] = lambda micro: self.head(forward.hidden_states(self.decoder, micro))  # noqa: E731
        return forward.per_sample(samples, self.limits, self.decoder.device, of)

    def update(
        self, valued: Sequence[ValuedSample], lr: float, tick: Callable[[], None] | None = None
    ) -> dict[str, float]:
        """One optimizer step over a mini-batch; steps without a target teach nothing."""
        samples = [item.sample for item in valued]
        old = [item.values for item in valued]
        returns = [
            item.returns if item.returns is not None else torch.full_like(item.values, math.nan) for item in valued
        ]
        wanted = float(sum(int(target.isfinite().sum()) for target in returns))
        if wanted == 0:
            return {}
        self.optimizer.zero_grad(set_to_none=True)
        loss = clipped = 0.0
        for micro in micro_batches(samples, self.limits, self.decoder.device):
            with torch.set_grad_enabled(self.own is not None):
                hidden = forward.hidden_states(self.decoder, micro)
            target, before = forward.gather(micro, returns), forward.gather(micro, old)
            known = target.isfinite()
            value_losses, outside = losses.value_loss(
                self.head(hidden)[known], before[known], target[known], self.settings.clip
            )
            part = value_losses.sum() / wanted
            torch.autograd.backward(part)
            loss += float(part.detach())
            clipped += float(outside.float().sum()) / wanted
            if tick is not None:
                tick()
        norm = apply_gradient(self.optimizer, self.parameters, self.settings.optimizer, lr, lambda: loss)
        return {"critic/vf_loss": loss, "critic/vf_clipfrac": clipped, "critic/grad_norm": norm, "critic/lr": lr}


def with_final_state(sample: Sample) -> Sample:
    """The sample with one more prediction, made at its last sampled token: the state an episode was cut off in."""
    end = int(np.flatnonzero(sample.mask)[-1]) + 1
    longer = [np.append(array[:end], array.dtype.type(0)) for array in (sample.weights, sample.advantages)]
    return Sample(
        (*sample.ids[:end], 0),
        np.append(sample.mask[:end], True),
        longer[0],
        longer[1],
        np.append(sample.sampling_logprobs[:end], np.float32(0)),
        sample.temperature,
    )


def explained_variance(values: FloatArray, returns: FloatArray) -> float:
    """1 - Var(returns - values) / Var(returns): 1 is perfect, 0 no better than a constant."""
    spread = float(np.var(returns))
    return 0.0 if spread == 0 else 1.0 - float(np.var(returns - values)) / spread
