"""Attention over a packed prefix tree: token i attends to j where j <= i < subtree_ends[j].

In the forward pass keys come in the order of a query's path and are summed as in decoding, to the last bit. The
backward pass skips blocks of tokens that do not attend to one another: the lists in `BlockAttentionPlan` name those
that do. A program owns what it writes, so no sum depends on which program is first.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.attention_plan import BLOCK_TOKENS, QUERY_BLOCKS_PER_SPLIT, BlockAttentionPlan
from practicum.kernels.fused_layers import rope_
from practicum.kernels.online_softmax import KEY_BLOCK, LOG2E, MASKED_SCORE, SEGMENT_KEYS, accumulate, dot, merge


@triton.jit
def _forward(
    joined, out, logsumexps, first_queries, num_queries, first_depths, path_offsets, paths, tokens, scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, queries: tl.constexpr, block: tl.constexpr,
    segment: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    query_block, head = tl.program_id(0), tl.program_id(1)
    width: tl.constexpr = (heads + 2 * kv_heads) * size
    queries_per_key: tl.constexpr = heads // kv_heads
    member, dim, step = tl.arange(0, queries), tl.arange(0, size), tl.arange(0, block)
    count, begin = tl.load(num_queries + query_block), tl.load(first_depths + query_block)
    if count > 0:  # a graph has room for more blocks than there are
        row = tl.load(first_queries + query_block) + member
        inside = member < count
        path = paths + tl.load(path_offsets + query_block)
        head_offset = row[:, None].to(tl.int64) * width + head * size + dim[None, :]
        query = tl.load(joined + head_offset, mask=inside[:, None], other=0.0)
        keys = joined + (heads + head // queries_per_key) * size
        values = joined + (heads + kv_heads + head // queries_per_key) * size
        position = begin + member
        row_m = tl.full((queries,), MASKED_SCORE, tl.float32)
        row_l = tl.zeros((queries,), tl.float32)
        row_acc = tl.zeros((queries, size), tl.float32)
        stop = begin + count
        for start in range(0, stop, segment):
            m = tl.full((queries,), MASKED_SCORE, tl.float32)
            l = tl.zeros((queries, 16), tl.float32)
            acc = tl.zeros((queries, size), tl.float32)
            for first_key in range(start, tl.minimum(start + segment, stop), block):
                key_index = first_key + step
                is_key = key_index < stop
                offset = tl.load(path + key_index, mask=is_key, other=0)[:, None].to(tl.int64) * width + dim[None, :]
                key = tl.load(keys + offset, mask=is_key[:, None], other=0.0)
                score = dot(query, tl.trans(key), exact) * scale
                score = tl.where(key_index[None, :] <= position[:, None], score, MASKED_SCORE)
                value = tl.load(values + offset, mask=is_key[:, None], other=0.0)
                m, l, acc = accumulate(score, value, m, l, acc, exact)
            row_m, row_l, row_acc = merge(row_m, row_l, row_acc, m, tl.max(l, 1), acc)
        target = out + row[:, None].to(tl.int64) * (heads * size) + head * size + dim[None, :]
        tl.store(target, (row_acc / row_l[:, None]).to(out.dtype.element_ty), mask=inside[:, None])
        tl.store(logsumexps + head * tokens + row, row_m + tl.log2(row_l), mask=inside)


@triton.jit
def _grad_dot_out(out, grad_out, result, tokens, heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr) -> None:
    row = tl.program_id(0) * block + tl.arange(0, block)
    head, dim = tl.program_id(1), tl.arange(0, size)
    inside = row < tokens
    offset = row[:, None].to(tl.int64) * (heads * size) + head * size + dim[None, :]
    first = tl.load(out + offset, mask=inside[:, None], other=0.0).to(tl.float32)
    second = tl.load(grad_out + offset, mask=inside[:, None], other=0.0).to(tl.float32)
    tl.store(result + head * tokens + row, tl.sum(first * second, 1), mask=inside)


@triton.jit
def _grad_query(
    joined, grad_out, grad_joined, logsumexps, grad_dot_out, subtree_ends, key_block_offsets, key_blocks, tokens,
    scale, grad_scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    query_block, head = tl.program_id(0), tl.program_id(1)
    width: tl.constexpr = (heads + 2 * kv_heads) * size
    queries_per_key: tl.constexpr = heads // kv_heads
    dim = tl.arange(0, size)
    row = query_block * block + tl.arange(0, block)
    inside = row < tokens
    offset = row[:, None].to(tl.int64) * width + dim[None, :]
    query = tl.load(joined + offset + head * size, mask=inside[:, None], other=0.0)
    grad_rows = grad_out + row[:, None].to(tl.int64) * (heads * size) + head * size + dim[None, :]
    grad = tl.load(grad_rows, mask=inside[:, None], other=0.0)
    logsumexp = tl.load(logsumexps + head * tokens + row, mask=inside, other=0.0)
    row_dot = tl.load(grad_dot_out + head * tokens + row, mask=inside, other=0.0)
    keys = joined + (heads + head // queries_per_key) * size
    values = joined + (heads + kv_heads + head // queries_per_key) * size
    grad_query = tl.zeros((block, size), tl.float32)
    for index in range(tl.load(key_block_offsets + query_block), tl.load(key_block_offsets + query_block + 1)):
        key_index = tl.load(key_blocks + index) * block + tl.arange(0, block)
        is_key = key_index < tokens
        end = tl.load(subtree_ends + key_index, mask=is_key, other=0)
        key_offset = key_index[:, None].to(tl.int64) * width + dim[None, :]
        key = tl.load(keys + key_offset, mask=is_key[:, None], other=0.0)
        value = tl.load(values + key_offset, mask=is_key[:, None], other=0.0)
        score = dot(query, tl.trans(key), exact) * scale
        visible = (key_index[None, :] <= row[:, None]) & (row[:, None] < end[None, :])
        weight = tl.where(visible, tl.exp2(score - logsumexp[:, None]), 0.0)
        grad_score = weight * (dot(grad, tl.trans(value), exact) - row_dot[:, None])
        grad_query += dot(grad_score.to(key.dtype), key, exact)
    target = grad_joined + offset + head * size
    tl.store(target, (grad_query * grad_scale).to(grad_joined.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _grad_key_value(
    joined, grad_out, grad_joined, split_grads, logsumexps, grad_dot_out, subtree_ends, query_block_offsets,
    query_blocks, split_offsets, split_key_blocks, tokens, scale, grad_scale, heads: tl.constexpr,
    kv_heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr,
    exact: tl.constexpr, query_blocks_per_split: tl.constexpr,
) -> None:  # fmt: skip
    split, kv = tl.program_id(0), tl.program_id(1)
    width: tl.constexpr = (heads + 2 * kv_heads) * size
    group: tl.constexpr = heads // kv_heads
    key_block = tl.load(split_key_blocks + split)
    if key_block >= 0:
        dim = tl.arange(0, size)
        row = key_block * block + tl.arange(0, block)
        inside = row < tokens
        end = tl.load(subtree_ends + row, mask=inside, other=0)
        offset = row[:, None].to(tl.int64) * width + dim[None, :]
        key = tl.load(joined + offset + (heads + kv) * size, mask=inside[:, None], other=0.0)
        value = tl.load(joined + offset + (heads + kv_heads + kv) * size, mask=inside[:, None], other=0.0)
        grad_key = tl.zeros((block, size), tl.float32)
        grad_value = tl.zeros((block, size), tl.float32)
        first_split, next_split = tl.load(split_offsets + key_block), tl.load(split_offsets + key_block + 1)
        first = tl.load(query_block_offsets + key_block) + (split - first_split) * query_blocks_per_split
        last = tl.minimum(first + query_blocks_per_split, tl.load(query_block_offsets + key_block + 1))
        for member in range(group):
            head = kv * group + member
            for index in range(first, last):
                query_index = tl.load(query_blocks + index) * block + tl.arange(0, block)
                is_query = query_index < tokens
                other_row = query_index[:, None].to(tl.int64)
                query = tl.load(
                    joined + other_row * width + head * size + dim[None, :], mask=is_query[:, None], other=0.0
                )
                grad_rows = grad_out + other_row * (heads * size) + head * size + dim[None, :]
                grad = tl.load(grad_rows, mask=is_query[:, None], other=0.0)
                logsumexp = tl.load(logsumexps + head * tokens + query_index, mask=is_query, other=0.0)
                row_dot = tl.load(grad_dot_out + head * tokens + query_index, mask=is_query, other=0.0)
                score = dot(key, tl.trans(query), exact) * scale
                visible = (
                    (row[:, None] <= query_index[None, :]) & (query_index[None, :] < end[:, None]) & is_query[None, :]
                )
                weight = tl.where(visible, tl.exp2(score - logsumexp[None, :]), 0.0)
                grad_value += dot(weight.to(grad.dtype), grad, exact)
                grad_score = weight * (dot(value, tl.trans(grad), exact) - row_dot[None, :])
                grad_key += dot(grad_score.to(query.dtype), query, exact)
        if next_split - first_split == 1:
            target = grad_joined + offset + (heads + kv) * size
            tl.store(target, (grad_key * grad_scale).to(grad_joined.dtype.element_ty), mask=inside[:, None])
            tl.store(target + kv_heads * size, grad_value.to(grad_joined.dtype.element_ty), mask=inside[:, None])
        else:
            part_offset = (split.to(tl.int64) * kv_heads + kv) * (2 * block) + tl.arange(0, block)
            part = split_grads + part_offset[:, None] * size + dim[None, :]
            tl.store(part, grad_key)
            tl.store(part + block * size, grad_value)


@triton.jit
def _sum_splits(
    split_grads, grad_joined, split_offsets, tokens, grad_scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    key_block, kv = tl.program_id(0), tl.program_id(1)
    first, last = tl.load(split_offsets + key_block), tl.load(split_offsets + key_block + 1)
    if last - first > 1:
        step, dim = tl.arange(0, block), tl.arange(0, size)
        grad_key = tl.zeros((block, size), tl.float32)
        grad_value = tl.zeros((block, size), tl.float32)
        for split in range(first, last):
            part_offset = (tl.cast(split, tl.int64) * kv_heads + kv) * (2 * block) + step
            part = split_grads + part_offset[:, None] * size + dim[None, :]
            grad_key += tl.load(part)
            grad_value += tl.load(part + block * size)
        row = key_block * block + step
        inside = (row < tokens)[:, None]
        offset = row[:, None].to(tl.int64) * ((heads + 2 * kv_heads) * size) + dim[None, :]
        target = grad_joined + offset + (heads + kv) * size
        tl.store(target, (grad_key * grad_scale).to(grad_joined.dtype.element_ty), mask=inside)
        tl.store(target + kv_heads * size, grad_value.to(grad_joined.dtype.element_ty), mask=inside)


class TreeAttention(torch.autograd.Function):
    """Attention over a prefix tree: joined projections [N, (H + 2K)·D] to [N, H·D].

    Queries and keys are rotated on the way, in place.
    """

    @staticmethod
    def forward(
        ctx: Any, joined: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], plan: BlockAttentionPlan,
        heads: int, kv_heads: int,
    ) -> Tensor:  # fmt: skip
        tokens, size = joined.shape[0], joined.shape[1] // (heads + 2 * kv_heads)
        rope_(joined, positions, tables, heads + kv_heads, size)
        out = joined.new_empty(tokens, heads * size)
        logsumexps = torch.empty(heads, tokens, dtype=torch.float32, device=joined.device)
        ctx.sizes = (tokens, heads, kv_heads, size, joined.dtype == torch.float32)
        ctx.plan, ctx.tables = plan, tables
        _forward[(len(plan.first_queries), heads)](
            joined, out, logsumexps, plan.first_queries, plan.num_queries, plan.first_depths, plan.path_offsets,
            plan.paths, tokens, size**-0.5 * LOG2E, heads, kv_heads, size, BLOCK_TOKENS, KEY_BLOCK, SEGMENT_KEYS,
            ctx.sizes[-1],
            num_warps=4, num_stages=1, enable_fp_fusion=False,
        )  # fmt: skip
        ctx.save_for_backward(joined, out, logsumexps, positions)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
        joined, out, logsumexps, positions = ctx.saved_tensors
        tokens, heads, kv_heads, size, exact = ctx.sizes
        plan: BlockAttentionPlan = ctx.plan
        grad_out = grad_out.contiguous()
        blocks = triton.cdiv(tokens, BLOCK_TOKENS)
        grad_dot_out = torch.empty_like(logsumexps)
        _grad_dot_out[(blocks, heads)](out, grad_out, grad_dot_out, tokens, heads, size, BLOCK_TOKENS, num_warps=4)
        grad_joined = torch.empty_like(joined)
        common = (tokens, size**-0.5 * LOG2E, size**-0.5, heads, kv_heads, size, BLOCK_TOKENS, exact)
        _grad_query[(blocks, heads)](
            joined, grad_out, grad_joined, logsumexps, grad_dot_out, plan.subtree_ends, plan.key_block_offsets,
            plan.key_blocks, *common, num_warps=4, num_stages=2,
        )  # fmt: skip
        split_grads = torch.empty(
            len(plan.split_key_blocks), kv_heads, 2, BLOCK_TOKENS, size, dtype=torch.float32, device=joined.device
        )
        _grad_key_value[(len(plan.split_key_blocks), kv_heads)](
            joined, grad_out, grad_joined, split_grads, logsumexps, grad_dot_out, plan.subtree_ends,
            plan.query_block_offsets, plan.query_blocks, plan.split_offsets, plan.split_key_blocks, *common,
            QUERY_BLOCKS_PER_SPLIT, num_warps=4, num_stages=2,
        )  # fmt: skip
        _sum_splits[(blocks, kv_heads)](
            split_grads, grad_joined, plan.split_offsets, tokens, size**-0.5, heads, kv_heads, size, BLOCK_TOKENS,
            num_warps=4,
        )  # fmt: skip
        rope_(grad_joined, positions, ctx.tables, heads + kv_heads, size, inverse=True)
        return grad_joined, None, None, None, None, None
