"""KL estimates per token between a policy and a reference, and the controller of a KL penalty's coefficient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SAMPLED_KINDS = ("kl", "abs", "mse", "low_var_kl")
KINDS = (*SAMPLED_KINDS, "full", *(f"{kind}+" for kind in (*SAMPLED_KINDS, "full")))
CONTROLLERS = ("fixed", "adaptive")


def penalty(logprobs: Tensor, reference: Tensor, kind: str, full_kl: Tensor | None = None) -> Tensor:
    """Return a KL estimate of each token [N]; d = log-prob of the sampled token minus the reference's.

    kl (k1) = d; abs = |d|; mse (k2) = d²/2, the one whose gradient as a loss is right; low_var_kl
    (k3) = exp(-d) + d - 1, clamped as its authors do; full = the divergence over the vocabulary,
    given as `full_kl` [N]. A `+` behind a name keeps its value and takes the gradient of k2.
    Schulman 2020, "Approximating KL Divergence"; k3 as a loss: Shao et al. 2024 (arXiv:2402.03300).
    """
    difference = logprobs - reference
    if kind not in KINDS:
        raise ValueError(f"no KL kind '{kind}'")
    if kind.endswith("+"):
        value = penalty(logprobs, reference, kind[:-1], full_kl).detach()
        squared = 0.5 * difference.square()
        return value + squared - squared.detach()
    if kind == "kl":
        return difference
    if kind == "abs":
        return difference.abs()
    if kind == "mse":
        return 0.5 * difference.square()
    if kind == "low_var_kl":
        negative = (-difference).clamp(-20.0, 20.0)
        return (torch.exp(negative) - negative - 1.0).clamp(-10.0, 10.0)
    if full_kl is None:
        raise ValueError("the full divergence needs both distributions")
    return full_kl


def full(logits: Tensor, reference: Tensor) -> Tensor:
    """Return Σ_v π(v)·(log π(v) - log π_ref(v)) [..] of logits [.., V] that are already divided by the temperature."""
    policy_logprobs, reference_logprobs = logits.float().log_softmax(-1), reference.float().log_softmax(-1)
    return (policy_logprobs.exp() * (policy_logprobs - reference_logprobs)).sum(-1)


@dataclass
class Controller:
    """The coefficient of a KL penalty: constant (`fixed`), or steered towards a target (`adaptive`).

    adaptive: e = clip(KL/target - 1, ±0.2); coefficient ← coefficient·(1 + e·sequences/horizon).
    Ziegler et al. 2019 (arXiv:1909.08593).
    """

    type: str
    kl_coef: float
    target_kl: float
    horizon: int

    def update(self, divergence: float, sequences: int) -> None:
        """Adapt the coefficient to a batch: its mean KL (mean over sequences of their token means) and its size."""
        if self.type == "adaptive":
            error = min(0.2, max(-0.2, divergence / self.target_kl - 1.0))
            self.kl_coef *= 1.0 + error * sequences / self.horizon
