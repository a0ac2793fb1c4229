"""AdamW for weights in half precision: float32 master copies take the steps, and the weights are their rounded copies.

An update smaller than the precision of the weights is not lost, and engine and learner go on reading the same tensors.
Gradients are accumulated in float32 after every micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw


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
