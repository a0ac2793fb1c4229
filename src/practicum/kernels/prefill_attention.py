"""Attention of prompts over their pages of keys and values, which hold what was cached of them already.

Tokens of several prompts are packed end to end, each prompt's in order. A block of queries belongs to one prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.kv_layout import page_arguments, page_offset, token_offset
from practicum.kernels.online_softmax import KEY_BLOCK, LOG2E, MASKED_SCORE, SEGMENT_KEYS, accumulate, dot, merge
from practicum.kernels.paged_kv import LayerPages

QUERY_BLOCK = 64
"""Queries per program."""
ATTEND_WARPS, ATTEND_STAGES = 4, 2
"""Of the programs that attend; neither changes a bit (`benchmarks/gpu_decode.py` measures others)."""


@dataclass(frozen=True)
class PackedPrompts:
    """T tokens of several prompts end to end, and their blocks of queries; views of one tensor, sent in one copy."""

    ids: Tensor  # [T]
    slots: Tensor  # [T] the slot of a token's prompt; -1: padding
    positions: Tensor  # [T]
    first: Tensor  # [blocks] the block's first token
    count: Tensor  # [blocks] its number of tokens


def _round_up(count: int) -> int:
    """Round up to 16 bytes: the alignment of a list decides how a kernel reads it, and each way is compiled anew."""
    return -(-count // 4) * 4


def unpack(numbers: Tensor, tokens: int, blocks: int) -> PackedPrompts:
    """The lists that `pack` has joined."""
    return PackedPrompts(*torch.split(numbers, [tokens, tokens, tokens, blocks, blocks]))


def num_query_blocks(rows: Sequence[tuple[int, Sequence[int], int]]) -> int:
    return sum(-(-len(ids) // QUERY_BLOCK) for _, ids, _ in rows)


def pack(rows: Sequence[tuple[int, Sequence[int], int]], tokens: int = 0, blocks: int = 0) -> tuple[Tensor, int, int]:
    """Rows (slot, ids, position of the first) as one tensor for `unpack`, with its numbers of tokens and blocks.

    Padded to at least `tokens` and `blocks`.
    """
    lengths = np.array([len(ids) for _, ids, _ in rows])
    ends = lengths.cumsum()
    total = int(ends[-1])
    counts = -(-lengths // QUERY_BLOCK)
    stops = np.repeat(ends, counts)
    number_in_row = np.arange(len(stops)) - np.repeat(counts.cumsum() - counts, counts)
    first = np.repeat(ends - lengths, counts) + QUERY_BLOCK * number_in_row
    tokens, blocks = _round_up(max(tokens, total)), _round_up(max(blocks, len(first)))
    numbers = np.zeros(3 * tokens + 2 * blocks, dtype=np.int32)
    ids, slots, positions, firsts, counts = np.split(numbers, np.cumsum([tokens, tokens, tokens, blocks]))
    ids[:total] = np.fromiter(chain.from_iterable([own for _, own, _ in rows]), dtype=np.int32, count=total)
    slots[:] = -1
    slots[:total] = np.repeat([slot for slot, _, _ in rows], lengths)
    positions[:total] = np.arange(total) - np.repeat(ends - lengths - [start for _, _, start in rows], lengths)
    firsts[: len(first)], counts[: len(first)] = first, np.minimum(stops - first, QUERY_BLOCK)
    return torch.from_numpy(numbers), tokens, blocks


@triton.jit
def _store_kv(
    joined, keys, values, table, table_stride, slots, positions,
    heads: tl.constexpr, kv_heads: tl.constexpr, block: tl.constexpr, size: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    head, dim = tl.arange(0, block), tl.arange(0, size)
    slot = tl.load(slots + row)
    inside = ((head < kv_heads) & (slot >= 0))[:, None]
    source = joined + row.to(tl.int64) * ((heads + 2 * kv_heads) * size) + (heads + head[:, None]) * size + dim[None, :]
    position = tl.load(positions + row)
    page = page_offset(table, table_stride, tl.maximum(slot, 0), position)
    target = page + token_offset(position, head[:, None], size) + dim[None, :]
    tl.store(keys + target, tl.load(source, mask=inside, other=0.0), mask=inside)
    tl.store(values + target, tl.load(source + kv_heads * size, mask=inside, other=0.0), mask=inside)


def store_kv(joined: Tensor, kv: LayerPages, packed: PackedPrompts, heads: int) -> None:
    """Store the rotated keys and the values of joined projections [T, (H + 2K)·D] in their prompts' pages."""
    _store_kv[(joined.shape[0],)](
        joined, *page_arguments(kv), packed.slots, packed.positions, heads, kv.kv_heads,
        triton.next_power_of_2(kv.kv_heads), kv.head_size, num_warps=2,
    )  # fmt: skip


@triton.jit
def _attend(
    joined, keys, values, table, table_stride, out, slots, positions, firsts, counts, scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, queries: tl.constexpr, block: tl.constexpr,
    segment: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    query_block, head = tl.program_id(0), tl.program_id(1)
    first, count = tl.load(firsts + query_block), tl.load(counts + query_block)
    member, dim, step = tl.arange(0, queries), tl.arange(0, size), tl.arange(0, block)
    inside = member < count
    row = (first + member).to(tl.int64)
    width: tl.constexpr = (heads + 2 * kv_heads) * size
    group: tl.constexpr = heads // kv_heads
    query = tl.load(joined + row[:, None] * width + head * size + dim[None, :], mask=inside[:, None], other=0.0)
    begin = tl.load(positions + first)
    position = begin + member
    slot = tl.load(slots + first)
    tokens = token_offset(step, head // group, size)[:, None] + dim[None, :]
    row_m = tl.full((queries,), MASKED_SCORE, tl.float32)
    row_l = tl.zeros((queries,), tl.float32)
    row_acc = tl.zeros((queries, size), tl.float32)
    stop = tl.where(count > 0, begin + count, 0)
    for start in range(0, stop, segment):
        m = tl.full((queries,), MASKED_SCORE, tl.float32)
        l = tl.zeros((queries, 16), tl.float32)
        acc = tl.zeros((queries, size), tl.float32)
        for first_key in range(start, tl.minimum(start + segment, stop), block):
            key_index = first_key + step
            offset = page_offset(table, table_stride, slot, first_key) + tokens
            is_key = (key_index < stop)[:, None]
            key = tl.load(keys + offset, mask=is_key, other=0.0)
            score = dot(query, tl.trans(key), exact) * scale
            score = tl.where(key_index[None, :] <= position[:, None], score, MASKED_SCORE)
            value = tl.load(values + offset, mask=is_key, other=0.0)
            m, l, acc = accumulate(score, value, m, l, acc, exact)
        row_m, row_l, row_acc = merge(row_m, row_l, row_acc, m, tl.max(l, 1), acc)
    target = out + row[:, None] * (heads * size) + head * size + dim[None, :]
    tl.store(target, (row_acc / row_l[:, None]).to(out.dtype.element_ty), mask=inside[:, None])


def attend(joined: Tensor, kv: LayerPages, packed: PackedPrompts, heads: int) -> Tensor:
    """Attention of the rotated queries of joined projections over their prompt's keys up to themselves: [T, H·D]."""
    kv_heads, size = kv.kv_heads, kv.head_size
    out = joined.new_empty(joined.shape[0], heads * size)
    _attend[(len(packed.first), heads)](
        joined, *page_arguments(kv), out, packed.slots, packed.positions, packed.first, packed.count,
        size**-0.5 * LOG2E, heads, kv_heads, size, QUERY_BLOCK, KEY_BLOCK, SEGMENT_KEYS, joined.dtype == torch.float32,
        num_warps=ATTEND_WARPS, num_stages=ATTEND_STAGES, enable_fp_fusion=False,
    )  # fmt: skip
    return out
