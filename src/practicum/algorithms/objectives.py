"""Losses of single tokens. Weights and denominators are the batch's business, not theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.errors import UserError, nearest

AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


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


def token_weights(lengths: Sequence[int], mode: str, norm: float = 1.0) -> tuple[list[float], float]:
    """Aggregation as one weight a sequence (for each of its tokens) and one denominator for the batch.

    token-mean: every token alike. seq-mean-token-mean: every sequence alike (GRPO's paper).
    seq-mean-token-sum: sums, averaged over sequences. seq-mean-token-sum-norm: the same over a
    constant length `norm` (Dr.GRPO).
    """
    count = sum(length > 0 for length in lengths)
    if mode == "token-mean":
        return [1.0] * len(lengths), float(sum(lengths))
    if mode == "seq-mean-token-mean":
        return [1.0 / length if length else 0.0 for length in lengths], float(count)
    if mode == "seq-mean-token-sum":
        return [1.0] * len(lengths), float(count)
    if mode == "seq-mean-token-sum-norm":
        return [1.0] * len(lengths), count * norm
    raise UserError(f"Unknown loss aggregation '{mode}'.{nearest(mode, AGGREGATIONS)}")
