"""The optimizer: AdamW's settings, its construction for a set of weights, and one clipped step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from practicum.config.actor_rollout_ref import ActorConfig, OptimConfig
from practicum.config.fields import default_of
from practicum.training.master_adamw import MasterAdamW


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
