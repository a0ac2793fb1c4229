"""Losses of single tokens. Weights and denominators are the batch's business, not theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.errors import UserError, did_you_mean

AGGREGATIONS = (
    "token-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
    "seq-mean-turn-mean-token-mean",
)
POLICY_LOSSES = ("vanilla", "gspo", "cispo")


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Per-token loss [N] and what happened on the way (all detached)."""

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
    """The clipped surrogate, with a second clip for very wrong ratios on negative advantages.

    Schulman et al. 2017 (arXiv:1707.06347); Ye et al. 2020 (arXiv:1912.09729) for the dual clip.
    """
    ratio = torch.exp((logprobs - old).clamp(-20.0, 20.0))
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    worse = torch.maximum(plain, clipped)
    bounded = torch.minimum(-advantages * dual_clip, worse)
    loss = torch.where(advantages < 0, bounded, worse)
    with torch.no_grad():
        return PolicyLoss(loss, ratio.detach(), clipped > plain, (advantages < 0) & (bounded < worse))


def sequence_log_ratios(logprobs: Tensor, old: Tensor, sequence: Tensor) -> Tensor:
    """Mean log-ratio of the sequence each token belongs to [N], detached; `sequence` names the owners [N]."""
    difference = (logprobs - old).detach()
    _, owner = torch.unique(sequence, return_inverse=True)
    count = int(owner.max()) + 1 if len(owner) else 0
    sums = torch.zeros(count, dtype=difference.dtype, device=difference.device).index_add_(0, owner, difference)
    sizes = torch.zeros_like(sums).index_add_(0, owner, torch.ones_like(difference))
    return (sums / sizes)[owner]


def gspo(
    logprobs: Tensor, log_ratios: Tensor, advantages: Tensor, clip_low: float = 0.2, clip_high: float = 0.2
) -> PolicyLoss:
    """The clipped surrogate over one ratio a sequence: the geometric mean of its tokens' ratios.

    `log_ratios` is each token's `sequence_log_ratios`. The value of every token's ratio is its
    sequence's; the gradient passes through the token itself, which summed up is the sequence's own.
    Zheng et al. 2025 (arXiv:2507.18071).
    """
    ratio = torch.exp((log_ratios + logprobs - logprobs.detach()).clamp(-20.0, 20.0))
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(plain, clipped)
    return PolicyLoss(loss, ratio.detach(), (clipped > plain).detach(), torch.zeros_like(plain) > 0)


def cispo(logprobs: Tensor, old: Tensor, advantages: Tensor, clip_high: float = 0.2) -> PolicyLoss:
    """REINFORCE weighted by a ratio that is capped at 1 + `clip_high` and carries no gradient: no token is lost.

    MiniMax 2025 (arXiv:2506.13585).
    """
    ratio = torch.exp((logprobs - old).clamp(-20.0, 20.0)).detach()
    capped = ratio.clamp(max=1.0 + clip_high)
    return PolicyLoss(-capped * advantages * logprobs, ratio, capped < ratio, torch.zeros_like(ratio) > 0)


def truncated_importance(old: Tensor, sampling: Tensor, cap: float) -> Tensor:
    """min(π_old/π_sampling, cap) of each token [N]: corrects for an engine that is not quite the learner.

    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".
    """
    return torch.exp((old - sampling).clamp(-20.0, 20.0)).clamp(max=cap)


def value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """½·max((V - G)², (V_clipped - G)²) of each step [N], V held within ±`clip` of its old value; and who was clipped.

    `clip` of 0 is the plain squared error.
    """
    plain = (values - returns).square()
    if clip <= 0:
        return 0.5 * plain, torch.zeros_like(plain) > 0
    held = (old + (values - old).clamp(-clip, clip) - returns).square()
    return 0.5 * torch.maximum(plain, held), (held > plain).detach()


def token_weights(lengths: Sequence[Sequence[int]], mode: str, norm: float = 1.0) -> tuple[list[list[float]], float]:
    """Aggregation as one weight a turn (for each of its tokens) and one denominator for the batch.

    `lengths` holds, for every trajectory, the sampled tokens of each of its turns.
    token-mean: every token alike. seq-mean-token-mean: every trajectory alike (GRPO's paper).
    seq-mean-token-sum: sums, averaged over trajectories. seq-mean-token-sum-norm: the same over a
    constant length `norm` (Dr.GRPO). seq-mean-turn-mean-token-mean: every trajectory alike, within it
    every turn, within that every token (Flow-GRPO).
    """
    if mode not in AGGREGATIONS:
        raise UserError(f"Unknown loss aggregation '{mode}'.{did_you_mean(mode, AGGREGATIONS)}")
    count = sum(sum(turns) > 0 for turns in lengths)
    if mode == "token-mean":
        return [[1.0] * len(turns) for turns in lengths], float(sum(sum(turns) for turns in lengths))
    if mode == "seq-mean-token-mean":
        return [[1.0 / max(1, sum(turns))] * len(turns) for turns in lengths], float(count)
    if mode == "seq-mean-turn-mean-token-mean":
        spoken = [max(1, sum(length > 0 for length in turns)) for turns in lengths]
        return [[1.0 / (n * max(1, length)) for length in turns] for turns, n in zip(lengths, spoken, strict=True)], (
            float(count)
        )
    constant = norm if mode == "seq-mean-token-sum-norm" else 1.0
    return [[1.0] * len(turns) for turns in lengths], count * constant
