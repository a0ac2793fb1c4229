"""How tokens are drawn from logits: one uniform number per token, drawn from the request's own seed.

The numbers that a request gets depend on its seed and the token's position alone, never on which other requests share
the batch, so the same request gives the same reply in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from practicum.engines.base import Sampling, TopLogprobs
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


def sample(logits: Tensor, uniform: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Ids [B] and their log-probs [B] from logits [B, V] and uniform numbers [B].

    Rows with temperature 0 are greedy and report the log-prob at temperature 1. Tokens with a logit of -inf are not
    sampled: the log-prob is that of the distribution over the others.
    """
    greedy = temperature <= 0
    divisor = torch.where(greedy, 1.0, temperature)[:, None]
    scaled = logits.float() / divisor
    cumulative = scaled.softmax(-1).cumsum(-1)
    sampled = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)[:, 0]
    ids = sampled.clamp_(max=logits.shape[-1] - 1)
    if logits.is_cuda or bool(greedy.any()):  # on a GPU the question itself would make the host wait
        ids = torch.where(greedy, logits.argmax(-1), ids)
    return ids, token_logprobs(scaled, ids)


def most_likely(count: int, logits: Tensor, temperature: Tensor) -> list[TopLogprobs]:
    """The `count` most likely tokens of each row of logits [B, V], in the distribution that `sample` draws from."""
    values, ids = top_logprobs_of(min(count, logits.shape[-1]), logits, temperature)
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return [tuple((i, v) for i, v in zip(*row, strict=True) if v > -torch.inf) for row in rows]


def top_logprobs_of(count: int, logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probs [B, count] and ids [B, count] of the most likely tokens, at a temperature [B]."""
    scaled = logits.float() / torch.where(temperature <= 0, 1.0, temperature)[:, None]
    values, ids = scaled.log_softmax(-1).topk(count, dim=-1)
    return values, ids


def is_filtered(sampling: Sampling) -> bool:
    """Whether less than the whole distribution is sampled from."""
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def filtered_logits(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Logits [B, V] with -inf for the tokens that top-k, top-p or min-p leave out at a temperature [B]."""
    divisor = torch.where(temperature <= 0, 1.0, temperature)[:, None]
    return filter_logits(logits.float() / divisor, top_k, top_p, min_p) * divisor


def filter_logits(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Logits [B, V] with -inf outside of the k most likely, of the p nucleus, or below min_p times the highest.

    All three refer to the probabilities before any of them is applied; 0, 1 and 0 turn them off. The most likely token
    is always left, also where top_p is too small for a float32.
    """
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[-1], device=scaled.device)[None]
    keep = (rank < top_k[:, None]) | (top_k[:, None] <= 0)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # probability of everything more likely
    keep &= (before < top_p[:, None]) | (top_p[:, None] >= 1) | (rank == 0)
    keep &= (probabilities >= min_p[:, None] * probabilities[:, :1]) | (min_p[:, None] <= 0)
    return torch.full_like(scaled, -torch.inf).scatter(-1, order, ordered.masked_fill(~keep, -torch.inf))
