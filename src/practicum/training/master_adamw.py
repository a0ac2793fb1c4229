"""AdamW for weights kept in half precision: float32 masters take the steps, the weights are their rounded copies.

An update smaller than the weights' own precision is not lost, and engine and learner go on reading the same tensors.
Gradients are gathered in float32 after every piece of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw


class MasterAdamW(torch.optim.Optimizer):
    """Its state holds, beside AdamW's, each weight's master: what is saved and restored with it is all there is."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": 1e-8})
        self.weights = list(parameters)
        self.gathered: Tensor | None = None
        """All gradients of a batch, end to end."""

    def gather(self) -> None:
        """Take over the weights' gradients, in float32. A weight without one has a gradient of zero."""
        if all(weight.grad is None for weight in self.weights):
            return
        found = torch.cat([
            (torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten() for weight in self.weights
        ])  # fmt: skip
        self.gathered = found.float() if self.gathered is None else self.gathered.add_(found)
        super().zero_grad()

    def clip(self, limit: float) -> Tensor:
        """Bound the gradient's norm; what it was."""
        if self.gathered is None:
            return torch.zeros(())
        norm: Tensor = torch.linalg.vector_norm(self.gathered)
        self.gathered.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.gathered = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.gathered is None:
            return
        sizes = [weight.numel() for weight in self.weights]
        gradients = [g.view_as(w) for g, w in zip(torch.split(self.gathered, sizes), self.weights, strict=True)]
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
