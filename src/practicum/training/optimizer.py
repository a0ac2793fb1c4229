"""The optimizer: settings, construction for a set of weights, learning-rate schedules, and one clipped step.

Weights in half precision get float32 master copies (`MasterAdamW`): the copies take the steps, since most steps are
smaller than half precision can add, and the weights are their rounded copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from practicum.config.actor_rollout_ref import ActorConfig, OptimConfig
from practicum.config.fields import default_of
from practicum.errors import UserError, did_you_mean


class MasterAdamW(torch.optim.Optimizer):
    """AdamW whose state also holds the master copy of each weight, so saving and restoring the state is enough."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": 1e-8})
        self.weights = list(parameters)
        self.accumulated: Tensor | None = None
        """The gradients of a batch so far, in float32, those of all weights end to end."""

    def accumulate(self) -> None:
        """Add the weights' gradients to the accumulated ones and clear them; a weight without one counts as zero."""
        if all(weight.grad is None for weight in self.weights):
            return
        gradient = torch.cat([
            (torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten() for weight in self.weights
        ])  # fmt: skip
        self.accumulated = gradient.float() if self.accumulated is None else self.accumulated.add_(gradient)
        super().zero_grad()

    def clip(self, max_norm: float) -> Tensor:
        """Scale the accumulated gradient down to `max_norm` and return the norm it had."""
        if self.accumulated is None:
            return torch.zeros(())
        norm: Tensor = torch.linalg.vector_norm(self.accumulated)
        self.accumulated.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.accumulated = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one AdamW step on the master copies and round them into the weights."""
        if self.accumulated is None:
            return
        sizes = [weight.numel() for weight in self.weights]
        gradients = [g.view_as(w) for g, w in zip(torch.split(self.accumulated, sizes), self.weights, strict=True)]
        for weight in self.weights:
            if not self.state[weight]:
                master = weight.detach().float()
                self.state[weight] |= {
                    "master": master,
                    "exp_avg": torch.zeros_like(master),
                    "exp_avg_sq": torch.zeros_like(master),
                    "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                }
        group, states = self.param_groups[0], [self.state[weight] for weight in self.weights]
        adamw(
            [state["master"] for state in states],
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        torch._foreach_copy_([weight.data for weight in self.weights], [state["master"] for state in states])


KINDS = ("constant", "cosine")


def learning_rate(
    step: int, total: int, peak: float, kind: str = "constant", warmup: int = 0, min_ratio: float = 0.1
) -> float:
    """Return the rate of a step from 0: linear warm-up, then constant or a cosine down to `min_ratio` of the peak."""
    if kind not in KINDS:
        raise UserError(f"Unknown learning-rate schedule '{kind}'.{did_you_mean(kind, KINDS)}")
    if step < warmup:
        return peak * (step + 1) / warmup
    if kind == "constant":
        return peak
    progress = (step - warmup) / max(1, total - warmup - 1)
    return peak * (min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW, and the largest norm of its gradient (`grad_clip`; 0: no bound)."""

    lr: float = default_of(OptimConfig, "lr")
    weight_decay: float = default_of(OptimConfig, "weight_decay")
    betas: tuple[float, float] = (0.9, 0.95)
    grad_clip: float = default_of(ActorConfig, "grad_clip")


def make_optimizer(parameters: Sequence[torch.nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Return AdamW over float32 weights, or AdamW with float32 master copies if any weight has another precision."""
    if any(parameter.dtype != torch.float32 for parameter in parameters):
        return MasterAdamW(parameters, settings.lr, settings.betas, settings.weight_decay)
    return torch.optim.AdamW(
        parameters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
    )


def apply_gradient(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.nn.Parameter],
    settings: OptimizerSettings,
    lr: float,
    get_loss: Callable[[], float],
) -> float:
    """Clip the gradient, take one optimizer step and return the gradient's norm before clipping.

    Raises FloatingPointError, and changes no weight, if the loss or the norm is not finite. `get_loss` is called after
    everything else has been launched, so that the host waits for a GPU once.
    """
    max_norm = settings.grad_clip or math.inf
    if isinstance(optimizer, MasterAdamW):
        optimizer.accumulate()
        norm_tensor = optimizer.clip(max_norm)
    else:
        norm_tensor = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    loss, norm = get_loss(), float(norm_tensor)
    if not math.isfinite(norm) or not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} and its gradient norm {norm}: nothing was updated")
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    return norm
