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
        self.gradients: list[Tensor | None] = [None] * len(self.weights)

    def gather(self) -> None:
        """Take over the weights' gradients, in float32."""
        sums: list[Tensor] = []
        more: list[Tensor] = []
        for place, weight in enumerate(self.weights):
            if weight.grad is None:
                continue
            known = self.gradients[place]
            if known is None:
                self.gradients[place] = weight.grad.float()
            else:
                sums.append(known)
                more.append(weight.grad)
            weight.grad = None
        if sums:
            torch._foreach_add_(sums, more)

    def clip(self, limit: float) -> float:
        """Bound the gradient's norm; what it was."""
        found = [gradient for gradient in self.gradients if gradient is not None]
        norm = torch.nn.utils.get_total_norm(found)
        torch._foreach_mul_(found, (limit / (norm + 1e-6)).clamp(max=1.0))
        return float(norm)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.gradients = [None] * len(self.weights)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        held = [(weight, g) for weight, g in zip(self.weights, self.gradients, strict=True) if g is not None]
        for weight, _ in held:
            if not self.state[weight]:
                master = weight.detach().float()
                self.state[weight] |= {
                    "master": master.clone() if master is weight else master,
                    "exp_avg": torch.zeros_like(master),
                    "exp_avg_sq": torch.zeros_like(master),
                    "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                }
        group, states = self.param_groups[0], [self.state[weight] for weight, _ in held]
        adamw(
            [state["master"] for state in states],
            [gradient for _, gradient in held],
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
        torch._foreach_copy_([weight.data for weight, _ in held], [state["master"] for state in states])
