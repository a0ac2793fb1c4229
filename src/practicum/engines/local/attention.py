"""Attention over the local engine's KV buffer, of prompts and of single tokens.

Values are always summed in the same blocks of keys: a matrix library picks its own order of summation by
the length it is given, and a row's numbers must not depend on its neighbours' length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

KEY_BUCKET = 128
FIRST_BLOCK = 64
"""Keys are looked at in blocks: one of 64, one more up to 128, then by 128. Short prompts read half as much."""


def edge(block: int) -> int:
    """The key at which a block begins."""
    return FIRST_BLOCK * block if block < 2 else KEY_BUCKET * (block - 1)


def block_count(keys: int) -> int:
    """Blocks that hold so many keys."""
    return 1 if keys <= FIRST_BLOCK else 1 + -(-keys // KEY_BUCKET)


def causal_mask(positions: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """0 where a query at positions [R, T] may look, -inf where not: [R, 1, T, keys]."""
    unseen = torch.arange(keys, device=positions.device) > positions[..., None]
    return torch.zeros(unseen.shape, dtype=dtype, device=unseen.device).masked_fill_(unseen, -torch.inf)[:, None]


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [R, T, H, D] over k, v [R, K, keys, D] under mask [R, 1, T, keys] gives [R, T, H·D]."""
    rows, width, heads, size = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    group = heads // kv_heads
    grouped = (q * size**-0.5).view(rows, width, kv_heads, group, size).permute(0, 2, 3, 1, 4)
    scores = torch.matmul(grouped.reshape(rows, kv_heads, group * width, size), k.transpose(-1, -2))
    scores = scores.view(rows, kv_heads, group, width, keys) + mask[:, :, None]
    blocks = [rows * kv_heads] * block_count(keys)
    mixed = _mix(scores.softmax(-1).view(rows * kv_heads, group * width, keys), v.flatten(0, 1), blocks)
    mixed = mixed.view(rows, kv_heads, group, width, size).permute(0, 3, 1, 2, 4)
    return mixed.reshape(rows, width, heads * size)


def decode_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, reach: Sequence[int]) -> Tensor:
    """The same for one query a row: q [R, H, D], bias [R·K, 1, keys]; gives [R, H·D].

    Block j of the keys is looked at for rows 0..reach[j]-1 only; the others have none there.
    """
    rows, heads, size = q.shape
    kv_heads = k.shape[1]
    grouped = q.reshape(rows * kv_heads, heads // kv_heads, size)
    keys, values, scale = k.flatten(0, 1).transpose(-1, -2), v.flatten(0, 1), size**-0.5
    blocks = [count * kv_heads for count in reach]
    scores = []
    for number, count in enumerate(blocks):  # each a tensor of its own: into a slice, the product would go row by row
        part = slice(edge(number), edge(number + 1))
        seen = torch.baddbmm(bias[:count, :, part], grouped[:count], keys[:count, :, part], alpha=scale)
        rest = len(grouped) - count
        scores.append(F.pad(seen, (0, 0, 0, 0, 0, rest), value=-torch.inf) if rest else seen)
    weights = (torch.cat(scores, -1) if len(scores) > 1 else scores[0]).softmax(-1)
    return _mix(weights, values, blocks).view(rows, heads * size)


def _mix(weights: Tensor, values: Tensor, blocks: Sequence[int]) -> Tensor:
    """weights [N, T, keys] × values [N, keys, D], summed block by block, always.

    A matrix library picks its own order of summation by the length it is given, and a row's numbers
    must not depend on its neighbours' length.
    """
    mixed = torch.bmm(weights[:, :, :FIRST_BLOCK], values[:, :FIRST_BLOCK])
    for number, count in enumerate(blocks[1:], 1):
        part = slice(edge(number), edge(number + 1))
        mixed[:count].baddbmm_(weights[:count, :, part], values[:count, part])
    return mixed
