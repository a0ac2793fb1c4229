"""How far a policy has moved from a reference, token by token, from the sampled token's log-probs."""

from __future__ import annotations

import torch
from torch import Tensor

from practicum.errors import UserError, nearest

KINDS = ("kl", "abs", "mse", "low_var_kl")


def penalty(logprobs: Tensor, reference: Tensor, kind: str) -> Tensor:
    """A KL estimate for each token [N]; d = log-prob minus reference.

    kl (k1) = d; abs = |d|; mse (k2) = d²/2, the one whose gradient as a loss is right; low_var_kl
    (k3) = exp(-d) + d - 1, clamped as its authors do. Schulman 2020, "Approximating KL Divergence".
    """
    difference = logprobs - reference
    if kind == "kl":
        return difference
    if kind == "abs":
        return difference.abs()
    if kind == "mse":
        return 0.5 * difference.square()
    if kind == "low_var_kl":
        negative = (-difference).clamp(-20.0, 20.0)
        return (torch.exp(negative) - negative - 1.0).clamp(-10.0, 10.0)
    raise UserError(f"Unknown KL kind '{kind}'.{nearest(kind, KINDS)}")
