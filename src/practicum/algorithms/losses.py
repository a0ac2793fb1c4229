"""Losses per token: policy losses and the value loss, as pure functions.

Aggregation over a batch is not done here: see `aggregation.py`. Adding a policy loss: a function here, its name in
POLICY_LOSSES, a line in `training/objective.py`, golden values in tests/algorithms/test_losses.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

POLICY_LOSSES = ("vanilla", "gspo", "cispo")
"""The values of `actor_rollout_ref.actor.policy_loss.loss_mode`, in verl's spelling; vanilla is `ppo`."""
MAX_LOG_RATIO = 20.0
"""Bound of |log π - log π_old| before it is exponentiated, so that no ratio overflows."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of each token [N] and, detached, its ratio [N] and whether a clip was in force [N]."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    clipped_low: Tensor


def ppo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
) -> PolicyLoss:
    """Return PPO's clipped surrogate of each token [N], with a second clip for large ratios at negative advantages.

    Schulman et al. 2017 (arXiv:1707.06347); Ye et al. 2020 (arXiv:1912.09729) for the dual clip.
    """
    ratio = importance_ratio(logprobs, old)
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    larger = torch.maximum(unclipped, clipped)
    bounded = torch.minimum(-advantages * dual_clip, larger)
    loss = torch.where(advantages < 0, bounded, larger)
    with torch.no_grad():
        return PolicyLoss(loss, ratio.detach(), clipped > unclipped, (advantages < 0) & (bounded < larger))


def sequence_log_ratios(logprobs: Tensor, old: Tensor, sequence: Tensor) -> Tensor:
    """Return the mean log-ratio of the sequence each token belongs to [N], detached.

    `sequence` [N] holds the index of each token's sequence; the indices need not be consecutive.
    """
    log_ratios = (logprobs - old).detach()
    _, owner = torch.unique(sequence, return_inverse=True)
    count = int(owner.max()) + 1 if len(owner) else 0
    sums = torch.zeros(count, dtype=log_ratios.dtype, device=log_ratios.device).index_add_(0, owner, log_ratios)
    lengths = torch.zeros_like(sums).index_add_(0, owner, torch.ones_like(log_ratios))
    return (sums / lengths)[owner]


def gspo(
    logprobs: Tensor, log_ratios: Tensor, advantages: Tensor, clip_low: float = 0.2, clip_high: float = 0.2
) -> PolicyLoss:
    """Return the clipped surrogate of each token [N] with one ratio per sequence: the geometric mean of its tokens'.

    `log_ratios` [N] comes from `sequence_log_ratios`. The value of every token's ratio is its
    sequence's; the gradient passes through the token itself, and the sum over tokens is the sequence's own.
    Zheng et al. 2025 (arXiv:2507.18071).
    """
    ratio = torch.exp((log_ratios + logprobs - logprobs.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(unclipped, clipped)
    return PolicyLoss(loss, ratio.detach(), (clipped > unclipped).detach(), torch.zeros_like(unclipped) > 0)


def cispo(logprobs: Tensor, old: Tensor, advantages: Tensor, clip_high: float = 0.2) -> PolicyLoss:
    """Return REINFORCE's loss of each token [N], weighted by a detached ratio capped at 1 + `clip_high`.

    The cap bounds the weight and not the loss, so no token loses its gradient. MiniMax 2025 (arXiv:2506.13585).
    """
    ratio = importance_ratio(logprobs, old).detach()
    capped = ratio.clamp(max=1.0 + clip_high)
    return PolicyLoss(-capped * advantages * logprobs, ratio, capped < ratio, torch.zeros_like(ratio) > 0)


def importance_ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    """Return π/π_old of each token [N]; the log-ratio is clamped at ±MAX_LOG_RATIO."""
    return torch.exp((logprobs - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def truncated_importance(old: Tensor, sampling: Tensor, cap: float) -> Tensor:
    """Return min(π_old/π_sampling, cap) of each token [N]: it corrects for an engine that differs from the learner.

    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; the truncation is that of
    Espeholt et al. 2018, IMPALA (arXiv:1802.01561).
    """
    return importance_ratio(old, sampling).clamp(max=cap)


def value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return ½·max((V - G)², (V_clipped - G)²) of each step [N], and where the clipped term was the larger [N].

    V_clipped is V kept within ±`clip` of its old value; `clip` of 0 gives the plain squared error.
    Schulman et al. 2017 (arXiv:1707.06347), as in OpenAI's baselines.
    """
    squared_error = (values - returns).square()
    if clip <= 0:
        return 0.5 * squared_error, torch.zeros_like(squared_error) > 0
    clipped = (old + (values - old).clamp(-clip, clip) - returns).square()
    return 0.5 * torch.maximum(squared_error, clipped), (clipped > squared_error).detach()
