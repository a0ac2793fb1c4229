"""Sampling on the device: one uniform number a token, drawn from the request's own seed.

The numbers a request gets depend on its seed and the token's place alone, never on which other
requests share the batch, so the same request gives the same reply whoever it runs beside.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from practicum.models.decoder import token_logprobs

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
MIX_A = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_B = -7723592293110705685  # 0x94D049BB133111EB


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """`count` numbers in [0, 1) for each seed (splitmix64 over a counter) [seeds, count]."""
    starts = torch.tensor([seed & (2**63 - 1) for seed in seeds], dtype=torch.int64)
    state = torch.arange(1, count + 1, dtype=torch.int64) * GOLDEN + starts[:, None]
    state = (state ^ _shift(state, 30)) * MIX_A
    state = (state ^ _shift(state, 27)) * MIX_B
    state = state ^ _shift(state, 31)
    return _shift(state, 11).double().mul(2.0**-53).float().clamp(max=1 - 2**-24)


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def sample(
    logits: Tensor, uniform: Tensor, temperature: Tensor, top_k: Tensor | None, top_p: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Ids [B] and their log-probs [B] from logits [B, V].

    Rows with temperature 0 are greedy and report the log-prob at temperature 1. With `top_k` or
    `top_p` the log-prob is that of the distribution really sampled from, renormalised.
    """
    greedy = temperature <= 0
    divisor = torch.where(greedy, 1.0, temperature)[:, None]
    if top_k is not None and top_p is not None:
        logits = restrict(logits.float() / divisor, top_k, top_p) * divisor
    scaled = logits.float() / divisor
    weights = scaled.softmax(-1).cumsum(-1)
    drawn = torch.searchsorted(weights, uniform[:, None] * weights[:, -1:], right=True)[:, 0]
    ids = drawn.clamp_(max=logits.shape[-1] - 1)
    if logits.is_cuda or bool(greedy.any()):  # asking a GPU would make it wait
        ids = torch.where(greedy, logits.argmax(-1), ids)
    return ids, token_logprobs(scaled, ids)


def restrict(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Logits [B, V] with everything outside the k likeliest and the p nucleus at -inf; 0 and 1 are off."""
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[-1], device=scaled.device)[None]
    keep = (rank < top_k[:, None]) | (top_k[:, None] <= 0)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # probability of everything likelier
    keep &= (before < top_p[:, None]) | (top_p[:, None] >= 1)
    return torch.full_like(scaled, -torch.inf).scatter(-1, order, ordered.masked_fill(~keep, -torch.inf))
