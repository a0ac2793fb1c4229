"""Attention on a CPU over keys and values of the KV cache, for prompts and for decode steps.

Values are always summed in the same blocks of keys: a matrix library picks its own order of summation by
the length it is given, and a row's numbers must not depend on its neighbours' length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

KEY_BUCKET = 128
"""Keys of a block, and the multiple that a slot's capacity is rounded up to."""
FIRST_BLOCK = 64
"""Keys of the first two blocks: short prompts read half as much."""


def block_start(block: int) -> int:
    """The first key of a block."""
    return FIRST_BLOCK * block if block < 2 else KEY_BUCKET * (block - 1)


def block_count(keys: int) -> int:
    """The block of blocks that hold `keys` keys."""
    return 1 if keys <= FIRST_BLOCK else 1 + -(-keys // KEY_BUCKET)


def causal_mask(positions: Tensor, keys: int, dtype: torch.dtype) -> Tensor:
    """0 where a query at positions [R, T] attends to a key, -inf elsewhere: [R, 1, T, keys]."""
    masked = torch.arange(keys, device=positions.device) > positions[..., None]
    return torch.zeros(masked.shape, dtype=dtype, device=masked.device).masked_fill_(masked, -torch.inf)[:, None]


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [R, T, H, D] over k, v [R, K, keys, D] under mask [R, 1, T, keys] gives [R, T, H·D]."""
    rows, width, heads, size = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    group = heads // kv_heads
    grouped = (q * size**-0.5).view(rows, width, kv_heads, group, size).permute(0, 2, 3, 1, 4)
    scores = torch.matmul(grouped.reshape(rows, kv_heads, group * width, size), k.transpose(-1, -2))
    scores = scores.view(rows, kv_heads, group, width, keys) + mask[:, :, None]
    blocks = [rows * kv_heads] * block_count(keys)
    result = _weighted_sum(scores.softmax(-1).view(rows * kv_heads, group * width, keys), v.flatten(0, 1), blocks)
    result = result.view(rows, kv_heads, group, width, size).permute(0, 3, 1, 2, 4)
    return result.reshape(rows, width, heads * size)


def decode_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, rows_per_block: Sequence[int]) -> Tensor:
    """One query per row: q [R, H, D] over k, v [R, K, keys, D] with bias [R·K, 1, keys] gives [R, H·D].

    Block j of the keys is read for rows 0..rows_per_block[j]-1 only; the others have no keys there.
    """
    rows, heads, size = q.shape
    kv_heads = k.shape[1]
    grouped = q.reshape(rows * kv_heads, heads // kv_heads, size)
    keys, values, scale = k.flatten(0, 1).transpose(-1, -2), v.flatten(0, 1), size**-0.5
    blocks = [count * kv_heads for count in rows_per_block]
    scores = []
    for block, count in enumerate(blocks):  # each a tensor of its own: into a slice, the product would go row by row
        part = slice(block_start(block), block_start(block + 1))
        block_scores = torch.baddbmm(bias[:count, :, part], grouped[:count], keys[:count, :, part], alpha=scale)
        rest = len(grouped) - count
        scores.append(F.pad(block_scores, (0, 0, 0, 0, 0, rest), value=-torch.inf) if rest else block_scores)
    weights = (torch.cat(scores, -1) if len(scores) > 1 else scores[0]).softmax(-1)
    return _weighted_sum(weights, values, blocks).view(rows, heads * size)


def _weighted_sum(weights: Tensor, values: Tensor, blocks: Sequence[int]) -> Tensor:
    """weights [N, T, keys] × values [N, keys, D], summed block by block (see the module's docstring)."""
    result = torch.bmm(weights[:, :, :FIRST_BLOCK], values[:, :FIRST_BLOCK])
    for block, count in enumerate(blocks[1:], 1):
        part = slice(block_start(block), block_start(block + 1))
        result[:count].baddbmm_(weights[:count, :, part], values[:count, part])
    return result
