"""Sampling on the device: one uniform number per token, drawn from the request's own seed.

The numbers that a request gets depend on its seed and the token's position alone, never on which other requests share
the batch, so the same request gives the same reply in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from practicum.models.decoder import token_logprobs
from practicum.utils.splitmix64 import GOLDEN_GAMMA, MIX_1, MIX_2


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """`count` numbers in [0, 1) for each seed (splitmix64 over a counter) [seeds, count]."""
    starts = torch.tensor([seed & (2**63 - 1) for seed in seeds], dtype=torch.int64)
    state = torch.arange(1, count + 1, dtype=torch.int64) * GOLDEN_GAMMA + starts[:, None]
    state = (state ^ _shift_right(state, 30)) * MIX_1
    state = (state ^ _shift_right(state, 27)) * MIX_2
    state = state ^ _shift_right(state, 31)
    return _shift_right(state, 11).double().mul(2.0**-53).float().clamp(max=1 - 2**-24)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """A logical shift: the sign bit moves like the others."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def sample(
    logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Ids [B] and their log-probs [B] from logits [B, V] and uniform numbers [B].

    Rows with temperature 0 are greedy and report the log-prob at temperature 1. With `top_k` or
    `top_p` the log-prob is that of the distribution really sampled from, renormalised.
    """
    greedy = temperature <= 0
    divisor = torch.where(greedy, 1.0, temperature)[:, None]
    if top_k is not None and top_p is not None:
        logits = filter_logits(logits.float() / divisor, top_k, top_p) * divisor
    scaled = logits.float() / divisor
    cumulative = scaled.softmax(-1).cumsum(-1)
    sampled = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]
    ids = sampled.clamp_(max=logits.shape[-1] - 1)
    if logits.is_cuda or bool(greedy.any()):  # on a GPU the question itself would make the host wait
        ids = torch.where(greedy, logits.argmax(-1), ids)
    return ids, token_logprobs(scaled, ids)


def filter_logits(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Logits [B, V] with everything outside the k most likely and the p nucleus at -inf; 0 and 1 turn them off."""
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[-1], device=scaled.device)[None]
    keep = (rank < top_k[:, None]) | (top_k[:, None] <= 0)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # probability of everything more likely
    keep &= (before < top_p[:, None]) | (top_p[:, None] >= 1)
    return torch.full_like(scaled, -torch.inf).scatter(-1, order, ordered.masked_fill(~keep, -torch.inf))
