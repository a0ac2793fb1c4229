"""Attention of prompts being computed over the KV buffer, in which what was cached lies already.

Tokens of several rows stand packed, each row's in order. A block of queries belongs to one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.online_softmax import KEYS, LOG2E, NOTHING, SEGMENT, dot, fold, merge

QUERIES = 64


@dataclass(frozen=True)
class Packed:
    """T tokens of several rows end to end, and their blocks of queries. Views of one tensor: it goes over in one go."""

    ids: Tensor  # [T]
    homes: Tensor  # [T] where in the KV buffer a token's row lies; -1: nowhere
    positions: Tensor  # [T]
    first: Tensor  # [blocks] the block's first token
    count: Tensor  # [blocks] how many it has


def _whole(count: int) -> int:
    """Where a list begins decides how a kernel may read it, and each way is built anew: all begin at 16 bytes."""
    return -(-count // 4) * 4


def cut_up(numbers: Tensor, tokens: int, blocks: int) -> Packed:
    return Packed(*torch.split(numbers, [tokens, tokens, tokens, blocks, blocks]))


def block_count(rows: Sequence[tuple[int, Sequence[int], int]]) -> int:
    return sum(-(-len(ids) // QUERIES) for _, ids, _ in rows)


def packed(rows: Sequence[tuple[int, Sequence[int], int]], tokens: int = 0, blocks: int = 0) -> tuple[Tensor, int, int]:
    """`rows`: (home, ids, position of the first), as numbers for `cut_up`, padded to at least so many tokens and
    blocks."""
    lengths = np.array([len(ids) for _, ids, _ in rows])
    offsets = np.concatenate([[0], lengths.cumsum()])
    total = int(offsets[-1])
    pairs = list(zip(offsets.tolist(), lengths.tolist(), strict=False))
    first = np.concatenate([np.arange(0, length, QUERIES) + at for at, length in pairs])
    stops = np.concatenate([np.full(-(-length // QUERIES), at + length) for at, length in pairs])
    tokens, blocks = _whole(max(tokens, total)), _whole(max(blocks, len(first)))
    numbers = np.zeros(3 * tokens + 2 * blocks, dtype=np.int32)
    ids, homes, positions, firsts, counts = np.split(numbers, np.cumsum([tokens, tokens, tokens, blocks]))
    ids[:total] = np.concatenate([np.asarray(own, dtype=np.int32) for _, own, _ in rows])
    homes[:] = -1
    homes[:total] = np.repeat([home for home, _, _ in rows], lengths)
    positions[:total] = np.arange(total) - np.repeat(offsets[:-1] - [start for _, _, start in rows], lengths)
    firsts[: len(first)], counts[: len(first)] = first, np.minimum(stops - first, QUERIES)
    return torch.from_numpy(numbers), tokens, blocks


@triton.jit
def _keep(
    joined, keys, values, homes, positions, slot_stride, head_stride,
    heads: tl.constexpr, kv_heads: tl.constexpr, block: tl.constexpr, size: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    head, place = tl.arange(0, block), tl.arange(0, size)
    lies = tl.load(homes + row)
    inside = ((head < kv_heads) & (lies >= 0))[:, None]
    source = (
        joined + row.to(tl.int64) * ((heads + 2 * kv_heads) * size) + (heads + head[:, None]) * size + place[None, :]
    )
    home = lies.to(tl.int64) * slot_stride + tl.load(positions + row) * size
    target = home + head[:, None] * head_stride + place[None, :]
    tl.store(keys + target, tl.load(source, mask=inside, other=0.0), mask=inside)
    tl.store(values + target, tl.load(source + kv_heads * size, mask=inside, other=0.0), mask=inside)


def keep(joined: Tensor, kv: Tensor, where: Packed, heads: int) -> None:
    """Turned keys and values of joined projections [T, (H + 2K)·D] go to kv [2, slots, K, keys, D]."""
    kv_heads, size = kv.shape[2], kv.shape[4]
    _keep[(joined.shape[0],)](
        joined, kv[0], kv[1], where.homes, where.positions, kv.stride(1), kv.stride(2), heads, kv_heads,
        triton.next_power_of_2(kv_heads), size, num_warps=2,
    )  # fmt: skip


@triton.jit
def _attend(
    joined, keys, values, out, homes, positions, firsts, counts, scale, slot_stride, head_stride,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, queries: tl.constexpr, block: tl.constexpr,
    segment: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    number, head = tl.program_id(0), tl.program_id(1)
    first, count = tl.load(firsts + number), tl.load(counts + number)
    member, place, step = tl.arange(0, queries), tl.arange(0, size), tl.arange(0, block)
    here = member < count
    row = (first + member).to(tl.int64)
    width: tl.constexpr = (heads + 2 * kv_heads) * size
    group: tl.constexpr = heads // kv_heads
    query = tl.load(joined + row[:, None] * width + head * size + place[None, :], mask=here[:, None], other=0.0)
    begin = tl.load(positions + first)
    position = begin + member
    offset = tl.load(homes + first).to(tl.int64) * slot_stride + (head // group) * head_stride
    whole_peak = tl.full((queries,), NOTHING, tl.float32)
    whole_total = tl.zeros((queries,), tl.float32)
    whole = tl.zeros((queries, size), tl.float32)
    stop = tl.where(count > 0, begin + count, 0)
    for start in range(0, stop, segment):
        peak = tl.full((queries,), NOTHING, tl.float32)
        total = tl.zeros((queries, 16), tl.float32)
        mixed = tl.zeros((queries, size), tl.float32)
        for at in range(start, tl.minimum(start + segment, stop), block):
            other = at + step
            where = offset + other[:, None] * size + place[None, :]
            there = (other < stop)[:, None]
            key = tl.load(keys + where, mask=there, other=0.0)
            score = dot(query, tl.trans(key), exact) * scale
            score = tl.where(other[None, :] <= position[:, None], score, NOTHING)
            value = tl.load(values + where, mask=there, other=0.0)
            peak, total, mixed = fold(score, value, peak, total, mixed, exact)
        whole_peak, whole_total, whole = merge(whole_peak, whole_total, whole, peak, tl.max(total, 1), mixed)
    target = out + row[:, None] * (heads * size) + head * size + place[None, :]
    tl.store(target, (whole / whole_total[:, None]).to(out.dtype.element_ty), mask=here[:, None])


def attend(joined: Tensor, kv: Tensor, where: Packed, heads: int) -> Tensor:
    """Turned queries of joined projections over their rows' keys up to themselves in kv: [T, H·D]."""
    kv_heads, size = kv.shape[2], kv.shape[4]
    out = joined.new_empty(joined.shape[0], heads * size)
    _attend[(len(where.first), heads)](
        joined, kv[0], kv[1], out, where.homes, where.positions, where.first, where.count, size**-0.5 * LOG2E,
        kv.stride(1), kv.stride(2), heads, kv_heads, size, QUERIES, KEYS, SEGMENT, joined.dtype == torch.float32,
        num_warps=4, num_stages=2, enable_fp_fusion=False,
    )  # fmt: skip
    return out
