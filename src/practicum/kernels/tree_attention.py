"""Attention over a packed forest: token i looks at j where j <= i < ends[j].

Forwards, keys come in the order of a query's path and are summed up as decoding does it, to the last bit.
Backwards, blocks of tokens that have nothing to say to one another are never looked at: the lists in `Spans` name
those that have. A program owns what it writes, so no sum depends on who comes first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.fused_layers import turn_
from practicum.kernels.online_softmax import KEYS, LOG2E, NOTHING, SEGMENT, dot, fold, merge
from practicum.models.prefix_tree import BLOCK_TOKENS, QUERY_BLOCKS_PER_SPLIT, BlockAttentionPlan


@triton.jit
def _forward(
    joined, out, sums, firsts, counts, depths, paths_from, paths, tokens, scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, queries: tl.constexpr, block: tl.constexpr,
    segment: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    number, head = tl.program_id(0), tl.program_id(1)
    width: tl.constexpr = (heads + 2 * kv_heads) * size
    kv: tl.constexpr = heads // kv_heads
    member, place, step = tl.arange(0, queries), tl.arange(0, size), tl.arange(0, block)
    count, begin = tl.load(counts + number), tl.load(depths + number)
    if count > 0:  # a graph has room for more blocks than there are
        row = tl.load(firsts + number) + member
        here = member < count
        path = paths + tl.load(paths_from + number)
        at_head = row[:, None].to(tl.int64) * width + head * size + place[None, :]
        query = tl.load(joined + at_head, mask=here[:, None], other=0.0)
        keys = joined + (heads + head // kv) * size
        values = joined + (heads + kv_heads + head // kv) * size
        position = begin + member
        whole_peak = tl.full((queries,), NOTHING, tl.float32)
        whole_total = tl.zeros((queries,), tl.float32)
        whole = tl.zeros((queries, size), tl.float32)
        stop = begin + count
        for start in range(0, stop, segment):
            peak = tl.full((queries,), NOTHING, tl.float32)
            total = tl.zeros((queries, 16), tl.float32)
            mixed = tl.zeros((queries, size), tl.float32)
            for at in range(start, tl.minimum(start + segment, stop), block):
                other = at + step
                there = other < stop
                where = tl.load(path + other, mask=there, other=0)[:, None].to(tl.int64) * width + place[None, :]
                key = tl.load(keys + where, mask=there[:, None], other=0.0)
                score = dot(query, tl.trans(key), exact) * scale
                score = tl.where(other[None, :] <= position[:, None], score, NOTHING)
                value = tl.load(values + where, mask=there[:, None], other=0.0)
                peak, total, mixed = fold(score, value, peak, total, mixed, exact)
            whole_peak, whole_total, whole = merge(whole_peak, whole_total, whole, peak, tl.max(total, 1), mixed)
        target = out + row[:, None].to(tl.int64) * (heads * size) + head * size + place[None, :]
        tl.store(target, (whole / whole_total[:, None]).to(out.dtype.element_ty), mask=here[:, None])
        tl.store(sums + head * tokens + row, whole_peak + tl.log2(whole_total), mask=here)


@triton.jit
def _agreement(out, by_out, result, tokens, heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr) -> None:
    row = tl.program_id(0) * block + tl.arange(0, block)
    head, place = tl.program_id(1), tl.arange(0, size)
    here = row < tokens
    at = row[:, None].to(tl.int64) * (heads * size) + head * size + place[None, :]
    first = tl.load(out + at, mask=here[:, None], other=0.0).to(tl.float32)
    second = tl.load(by_out + at, mask=here[:, None], other=0.0).to(tl.float32)
    tl.store(result + head * tokens + row, tl.sum(first * second, 1), mask=here)


@triton.jit
def _by_query(
    joined, by_out, gradient, sums, agreement, ends, looks_from, looks, tokens, scale, plain_scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    number, head = tl.program_id(0), tl.program_id(1)
    width: tl.constexpr = (heads + 2 * kv_heads) * size
    kv: tl.constexpr = heads // kv_heads
    place = tl.arange(0, size)
    row = number * block + tl.arange(0, block)
    here = row < tokens
    at = row[:, None].to(tl.int64) * width + place[None, :]
    query = tl.load(joined + at + head * size, mask=here[:, None], other=0.0)
    asked = by_out + row[:, None].to(tl.int64) * (heads * size) + head * size + place[None, :]
    asking = tl.load(asked, mask=here[:, None], other=0.0)
    whole = tl.load(sums + head * tokens + row, mask=here, other=0.0)
    known = tl.load(agreement + head * tokens + row, mask=here, other=0.0)
    keys = joined + (heads + head // kv) * size
    values = joined + (heads + kv_heads + head // kv) * size
    found = tl.zeros((block, size), tl.float32)
    for entry in range(tl.load(looks_from + number), tl.load(looks_from + number + 1)):
        other = tl.load(looks + entry) * block + tl.arange(0, block)
        there = other < tokens
        end = tl.load(ends + other, mask=there, other=0)
        where = other[:, None].to(tl.int64) * width + place[None, :]
        key = tl.load(keys + where, mask=there[:, None], other=0.0)
        value = tl.load(values + where, mask=there[:, None], other=0.0)
        score = dot(query, tl.trans(key), exact) * scale
        seen = (other[None, :] <= row[:, None]) & (row[:, None] < end[None, :])
        weight = tl.where(seen, tl.exp2(score - whole[:, None]), 0.0)
        slope = weight * (dot(asking, tl.trans(value), exact) - known[:, None])
        found += dot(slope.to(key.dtype), key, exact)
    tl.store(gradient + at + head * size, (found * plain_scale).to(gradient.dtype.element_ty), mask=here[:, None])


@triton.jit
def _by_key(
    joined, by_out, gradient, shared, sums, agreement, ends, seen_from, seen_by, shares_from, shares, tokens, scale,
    plain_scale, heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr,
    exact: tl.constexpr, share: tl.constexpr,
) -> None:  # fmt: skip
    own, kv = tl.program_id(0), tl.program_id(1)
    width: tl.constexpr = (heads + 2 * kv_heads) * size
    group: tl.constexpr = heads // kv_heads
    number = tl.load(shares + own)
    if number >= 0:
        place = tl.arange(0, size)
        row = number * block + tl.arange(0, block)
        here = row < tokens
        end = tl.load(ends + row, mask=here, other=0)
        at = row[:, None].to(tl.int64) * width + place[None, :]
        key = tl.load(joined + at + (heads + kv) * size, mask=here[:, None], other=0.0)
        value = tl.load(joined + at + (heads + kv_heads + kv) * size, mask=here[:, None], other=0.0)
        by_key = tl.zeros((block, size), tl.float32)
        by_value = tl.zeros((block, size), tl.float32)
        mine, next_block = tl.load(shares_from + number), tl.load(shares_from + number + 1)
        first = tl.load(seen_from + number) + (own - mine) * share
        last = tl.minimum(first + share, tl.load(seen_from + number + 1))
        for member in range(group):
            head = kv * group + member
            for entry in range(first, last):
                other = tl.load(seen_by + entry) * block + tl.arange(0, block)
                there = other < tokens
                where = other[:, None].to(tl.int64)
                query = tl.load(joined + where * width + head * size + place[None, :], mask=there[:, None], other=0.0)
                asked = by_out + where * (heads * size) + head * size + place[None, :]
                asking = tl.load(asked, mask=there[:, None], other=0.0)
                whole = tl.load(sums + head * tokens + other, mask=there, other=0.0)
                known = tl.load(agreement + head * tokens + other, mask=there, other=0.0)
                score = dot(key, tl.trans(query), exact) * scale
                seen = (row[:, None] <= other[None, :]) & (other[None, :] < end[:, None]) & there[None, :]
                weight = tl.where(seen, tl.exp2(score - whole[None, :]), 0.0)
                by_value += dot(weight.to(asking.dtype), asking, exact)
                slope = weight * (dot(value, tl.trans(asking), exact) - known[None, :])
                by_key += dot(slope.to(query.dtype), query, exact)
        if next_block - mine == 1:
            target = gradient + at + (heads + kv) * size
            tl.store(target, (by_key * plain_scale).to(gradient.dtype.element_ty), mask=here[:, None])
            tl.store(target + kv_heads * size, by_value.to(gradient.dtype.element_ty), mask=here[:, None])
        else:
            lies = (own.to(tl.int64) * kv_heads + kv) * (2 * block) + tl.arange(0, block)
            part = shared + lies[:, None] * size + place[None, :]
            tl.store(part, by_key)
            tl.store(part + block * size, by_value)


@triton.jit
def _gather_shares(
    shared, gradient, shares_from, tokens, plain_scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    number, kv = tl.program_id(0), tl.program_id(1)
    first, last = tl.load(shares_from + number), tl.load(shares_from + number + 1)
    if last - first > 1:
        step, place = tl.arange(0, block), tl.arange(0, size)
        by_key = tl.zeros((block, size), tl.float32)
        by_value = tl.zeros((block, size), tl.float32)
        for own in range(first, last):
            lies = (tl.cast(own, tl.int64) * kv_heads + kv) * (2 * block) + step
            part = shared + lies[:, None] * size + place[None, :]
            by_key += tl.load(part)
            by_value += tl.load(part + block * size)
        row = number * block + step
        here = (row < tokens)[:, None]
        at = row[:, None].to(tl.int64) * ((heads + 2 * kv_heads) * size) + place[None, :]
        target = gradient + at + (heads + kv) * size
        tl.store(target, (by_key * plain_scale).to(gradient.dtype.element_ty), mask=here)
        tl.store(target + kv_heads * size, by_value.to(gradient.dtype.element_ty), mask=here)


class ForestAttention(torch.autograd.Function):
    """Joined projections [N, (H + 2K)·D] to mixed values [N, H·D]; queries and keys are turned on the way, in place."""

    @staticmethod
    def forward(
        ctx: Any, joined: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], plan: BlockAttentionPlan,
        heads: int,
        kv_heads: int,
    ) -> Tensor:  # fmt: skip
        tokens, size = joined.shape[0], joined.shape[1] // (heads + 2 * kv_heads)
        turn_(joined, positions, tables, heads + kv_heads, size)
        out = joined.new_empty(tokens, heads * size)
        sums = torch.empty(heads, tokens, dtype=torch.float32, device=joined.device)
        ctx.sizes = (tokens, heads, kv_heads, size, joined.dtype == torch.float32)
        ctx.plan, ctx.tables = plan, tables
        _forward[(len(plan.first_queries), heads)](
            joined, out, sums, plan.first_queries, plan.num_queries, plan.first_depths, plan.path_offsets, plan.paths,
            tokens,
            size**-0.5 * LOG2E, heads, kv_heads, size, BLOCK_TOKENS, KEYS, SEGMENT, ctx.sizes[-1],
            num_warps=4, num_stages=1, enable_fp_fusion=False,
        )  # fmt: skip
        ctx.save_for_backward(joined, out, sums, positions)
        return out

    @staticmethod
    def backward(ctx: Any, by_out: Tensor) -> tuple[Any, ...]:
        joined, out, sums, positions = ctx.saved_tensors
        tokens, heads, kv_heads, size, exact = ctx.sizes
        plan: BlockAttentionPlan = ctx.plan
        by_out = by_out.contiguous()
        blocks = triton.cdiv(tokens, BLOCK_TOKENS)
        agreement = torch.empty_like(sums)
        _agreement[(blocks, heads)](out, by_out, agreement, tokens, heads, size, BLOCK_TOKENS, num_warps=4)
        gradient = torch.empty_like(joined)
        common = (tokens, size**-0.5 * LOG2E, size**-0.5, heads, kv_heads, size, BLOCK_TOKENS, exact)
        _by_query[(blocks, heads)](
            joined, by_out, gradient, sums, agreement, plan.subtree_ends, plan.key_block_offsets,
            plan.key_blocks, *common,
            num_warps=4, num_stages=2,
        )  # fmt: skip
        shared = torch.empty(
            len(plan.split_key_blocks), kv_heads, 2, BLOCK_TOKENS, size, dtype=torch.float32, device=joined.device
        )
        _by_key[(len(plan.split_key_blocks), kv_heads)](
            joined, by_out, gradient, shared, sums, agreement, plan.subtree_ends, plan.query_block_offsets,
            plan.query_blocks, plan.split_offsets,
            plan.split_key_blocks, *common, QUERY_BLOCKS_PER_SPLIT, num_warps=4, num_stages=2,
        )  # fmt: skip
        _gather_shares[(blocks, kv_heads)](
            shared, gradient, plan.split_offsets, tokens, size**-0.5, heads, kv_heads, size, BLOCK_TOKENS, num_warps=4
        )
        turn_(gradient, positions, ctx.tables, heads + kv_heads, size, back=True)
        return gradient, None, None, None, None, None
