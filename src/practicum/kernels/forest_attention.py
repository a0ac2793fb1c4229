"""Attention over a packed forest: token i looks at j where j <= i < ends[j].

Blocks of tokens that have nothing to say to one another are never looked at: the lists in `Spans` name those that
have. A program of the backward pass owns what it writes, so no sum depends on who comes first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.dots import dot, mix
from practicum.kernels.layers import turn_
from practicum.training.forest import BLOCK, Spans

LOG2E = 1.4426950408889634


@triton.jit
def _forward(
    joined, out, sums, ends, looks_from, looks, tokens, scale,
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
    keys = joined + (heads + head // kv) * size
    values = joined + (heads + kv_heads + head // kv) * size
    peak = tl.full((block,), -1e30, tl.float32)
    total = tl.zeros((block,), tl.float32)
    mixed = tl.zeros((block, size), tl.float32)
    for entry in range(tl.load(looks_from + number), tl.load(looks_from + number + 1)):
        other = tl.load(looks + entry) * block + tl.arange(0, block)
        there = other < tokens
        end = tl.load(ends + other, mask=there, other=0)
        where = other[:, None].to(tl.int64) * width + place[None, :]
        key = tl.load(keys + where, mask=there[:, None], other=0.0)
        score = dot(query, tl.trans(key), exact) * scale
        seen = (other[None, :] <= row[:, None]) & (row[:, None] < end[None, :])
        score = tl.where(seen, score, -1e30)
        higher = tl.maximum(peak, tl.max(score, 1))
        weight = tl.where(seen, tl.exp2(score - higher[:, None]), 0.0)
        fade = tl.exp2(peak - higher)
        total = total * fade + tl.sum(weight, 1)
        value = tl.load(values + where, mask=there[:, None], other=0.0)
        mixed = mixed * fade[:, None] + mix(weight, value, exact)
        peak = higher
    whole = tl.where(total > 0.0, total, 1.0)
    target = out + row[:, None].to(tl.int64) * (heads * size) + head * size + place[None, :]
    tl.store(target, (mixed / whole[:, None]).to(out.dtype.element_ty), mask=here[:, None])
    tl.store(sums + head * tokens + row, peak + tl.log2(whole), mask=here)


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
    joined, by_out, gradient, sums, agreement, ends, seen_from, seen_by, tokens, scale, plain_scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    number, kv = tl.program_id(0), tl.program_id(1)
    width: tl.constexpr = (heads + 2 * kv_heads) * size
    group: tl.constexpr = heads // kv_heads
    place = tl.arange(0, size)
    row = number * block + tl.arange(0, block)
    here = row < tokens
    end = tl.load(ends + row, mask=here, other=0)
    at = row[:, None].to(tl.int64) * width + place[None, :]
    key = tl.load(joined + at + (heads + kv) * size, mask=here[:, None], other=0.0)
    value = tl.load(joined + at + (heads + kv_heads + kv) * size, mask=here[:, None], other=0.0)
    by_key = tl.zeros((block, size), tl.float32)
    by_value = tl.zeros((block, size), tl.float32)
    first, last = tl.load(seen_from + number), tl.load(seen_from + number + 1)
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
    target = gradient + at + (heads + kv) * size
    tl.store(target, (by_key * plain_scale).to(gradient.dtype.element_ty), mask=here[:, None])
    tl.store(target + kv_heads * size, by_value.to(gradient.dtype.element_ty), mask=here[:, None])


class ForestAttention(torch.autograd.Function):
    """Joined projections [N, (H + 2K)·D] to mixed values [N, H·D]; queries and keys are turned on the way, in place."""

    @staticmethod
    def forward(
        ctx: Any, joined: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], look: Spans, heads: int,
        kv_heads: int,
    ) -> Tensor:  # fmt: skip
        tokens, size = joined.shape[0], joined.shape[1] // (heads + 2 * kv_heads)
        turn_(joined, positions, tables, heads + kv_heads, size)
        out = joined.new_empty(tokens, heads * size)
        sums = torch.empty(heads, tokens, dtype=torch.float32, device=joined.device)
        ctx.sizes = (tokens, heads, kv_heads, size, joined.dtype == torch.float32)
        ctx.look, ctx.tables = look, tables
        _forward[(triton.cdiv(tokens, BLOCK), heads)](
            joined, out, sums, look.ends, look.looks_from, look.looks, tokens, size**-0.5 * LOG2E,
            heads, kv_heads, size, BLOCK, ctx.sizes[-1], num_warps=4, num_stages=2,
        )  # fmt: skip
        ctx.save_for_backward(joined, out, sums, positions)
        return out

    @staticmethod
    def backward(ctx: Any, by_out: Tensor) -> tuple[Any, ...]:
        joined, out, sums, positions = ctx.saved_tensors
        tokens, heads, kv_heads, size, exact = ctx.sizes
        look: Spans = ctx.look
        by_out = by_out.contiguous()
        blocks = triton.cdiv(tokens, BLOCK)
        agreement = torch.empty_like(sums)
        _agreement[(blocks, heads)](out, by_out, agreement, tokens, heads, size, BLOCK, num_warps=4)
        gradient = torch.empty_like(joined)
        common = (tokens, size**-0.5 * LOG2E, size**-0.5, heads, kv_heads, size, BLOCK, exact)
        _by_query[(blocks, heads)](
            joined, by_out, gradient, sums, agreement, look.ends, look.looks_from, look.looks, *common,
            num_warps=4, num_stages=2,
        )  # fmt: skip
        _by_key[(blocks, kv_heads)](
            joined, by_out, gradient, sums, agreement, look.ends, look.seen_from, look.seen, *common,
            num_warps=4, num_stages=2,
        )  # fmt: skip
        turn_(gradient, positions, ctx.tables, heads + kv_heads, size, back=True)
        return gradient, None, None, None, None, None
