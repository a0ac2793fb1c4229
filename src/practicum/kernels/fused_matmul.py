"""Matrix products of a decode step fused with what follows them: rotation and KV write, or SiLU and multiplication.

A small product's time is mostly that of starting and of waiting for memory, and a kernel after it takes as long again.
The fused kernels round where two kernels would, and their sums run in cuBLAS's order: not a bit differs (an H200, all
sizes from SmolLM2-135M's to a 7 B model's, 16 to 1,024 rows). Large products are left to cuBLAS.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.decode_attention import rope_and_store
from practicum.kernels.fused_layers import silu_and_mul
from practicum.kernels.kv_layout import page_arguments, page_offset, token_offset
from practicum.kernels.packed_forward import linear
from practicum.kernels.paged_kv import LayerPages
from practicum.models.decoder import FusedLinear, Layer

BLOCK_K = 64
"""Terms of a sum per step."""
MAX_FUSED_HIDDEN = 1024
"""Hidden size up to which fusing the rotation pays, and the SiLU with at most `MAX_SMALL_BATCH_ROWS` rows."""
MAX_FUSED_HIDDEN_LARGE_BATCH = 640
"""Hidden size up to which fusing the SiLU pays with any number of rows."""
MAX_SMALL_BATCH_ROWS = 64
FUSED_DTYPES = (torch.bfloat16, torch.float16)
"""In float32 sums would run in another order than cuBLAS's."""
TILES_BY_MAX_ROWS = {32: (16, 32, 5), 128: (64, 32, 5), 256: (64, 64, 5)}
"""Rows, columns and pipeline stages of a program of `matmul_silu_and_mul`, by the most rows that they are used for."""
LARGEST_TILE = (64, 64, 3)


@triton.jit
def accumulate_terms(acc, rows, columns, exact: tl.constexpr):
    if exact:
        return tl.dot(rows, columns, acc, input_precision="ieee")
    else:
        return tl.dot(rows, columns, acc)


@triton.jit
def program_tile(
    x, weight, rows, size: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr
):
    """The rows and columns of a program's tile of x [W, E] times weight [O, E] transposed, which rows there are
    [block_m, 1], and where the first terms of both are."""
    row = tl.program_id(1) * block_m + tl.arange(0, block_m)
    column = tl.program_id(0) * block_n + tl.arange(0, block_n)
    term = tl.arange(0, block_k)
    inside = (row < rows)[:, None]
    source = x + row[:, None] * size + term[None, :]
    weights = weight + column[None, :] * size + term[:, None]
    return row, column, inside, source, weights


@triton.jit
def _matmul_silu_and_mul(
    x, weight, out, rows, width, size: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
    block_k: tl.constexpr, stages: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside, source, gate_weight = program_tile(x, weight, rows, size, block_m, block_n, block_k)
    up_weight = gate_weight + width * size
    gate, up = tl.zeros((block_m, block_n), tl.float32), tl.zeros((block_m, block_n), tl.float32)
    for start in tl.range(0, size, block_k, num_stages=stages):
        value = tl.load(source + start, mask=inside, other=0.0)
        gate = accumulate_terms(gate, value, tl.load(gate_weight + start), exact)
        up = accumulate_terms(up, value, tl.load(up_weight + start), exact)
    dtype = out.dtype.element_ty
    rounded = gate.to(dtype).to(tl.float32)
    silu = (rounded * tl.sigmoid(rounded)).to(dtype)
    tl.store(out + row[:, None] * width + column[None, :], silu * up.to(dtype), mask=inside)


def matmul_silu_and_mul(x: Tensor, weight: Tensor) -> Tensor:
    """silu(gate) · up [W, I] of x [W, E], by both weights side by side [2I, E]."""
    (rows, size), width = x.shape, weight.shape[0] // 2
    out = x.new_empty(rows, width)
    block_m, block_n, stages = next((tile for most, tile in TILES_BY_MAX_ROWS.items() if rows <= most), LARGEST_TILE)
    _matmul_silu_and_mul[(width // block_n, triton.cdiv(rows, block_m))](
        x, weight, out, rows, width, size, block_m, block_n, BLOCK_K, stages, x.dtype == torch.float32, num_warps=4
    )
    return out


@triton.jit
def _matmul_rope(
    x, weight, bias, query, keys, values, table, table_stride, slots, positions, cos, sin, rows,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_size: tl.constexpr, size: tl.constexpr, biased: tl.constexpr,
    block_m: tl.constexpr, block_k: tl.constexpr, stages: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    half: tl.constexpr = head_size // 2
    head = tl.program_id(0)
    row = tl.program_id(1) * block_m + tl.arange(0, block_m)
    term, dim = tl.arange(0, block_k), tl.arange(0, half)
    valid = row < rows
    inside = valid[:, None]
    source = x + row[:, None] * size + term[None, :]
    first_weight = weight + (head * head_size + dim[None, :]) * size + term[:, None]
    second_weight = first_weight + half * size
    first, second = tl.zeros((block_m, half), tl.float32), tl.zeros((block_m, half), tl.float32)
    for start in tl.range(0, size, block_k, num_stages=stages):
        value = tl.load(source + start, mask=inside, other=0.0)
        first = accumulate_terms(first, value, tl.load(first_weight + start), exact)
        second = accumulate_terms(second, value, tl.load(second_weight + start), exact)
    if biased:
        first += tl.load(bias + head * head_size + dim).to(tl.float32)[None, :]
        second += tl.load(bias + head * head_size + half + dim).to(tl.float32)[None, :]
    dtype = query.dtype.element_ty
    position = tl.load(positions + row, mask=valid, other=0)
    slot = tl.load(slots + row, mask=valid, other=0)
    page = page_offset(table, table_stride, slot, position)
    if head >= heads + kv_heads:
        offset = page + token_offset(position, head - heads - kv_heads, head_size)
        target = values + offset[:, None] + dim[None, :]
        tl.store(target, first.to(dtype), mask=inside)
        tl.store(target + half, second.to(dtype), mask=inside)
    else:
        a, b = first.to(dtype).to(tl.float32), second.to(dtype).to(tl.float32)
        angle = (position * head_size)[:, None] + dim[None, :]
        rotated = a * tl.load(cos + angle) + b * tl.load(sin + angle)
        other = b * tl.load(cos + angle + half) + a * tl.load(sin + angle + half)
        if head < heads:
            target = query + (row * heads + head)[:, None] * head_size + dim[None, :]
        else:
            offset = page + token_offset(position, head - heads, head_size)
            target = keys + offset[:, None] + dim[None, :]
        tl.store(target, rotated.to(dtype), mask=inside)
        tl.store(target + half, other.to(dtype), mask=inside)


def matmul_rope(
    x: Tensor, weight: Tensor, bias: Tensor | None, kv: LayerPages, slots: Tensor, positions: Tensor,
    tables: tuple[Tensor, Tensor], heads: int,
) -> Tensor:  # fmt: skip
    """Rotated queries [W, H, D] of x [W, E] by the joined weights [(H + 2K)·D, E]; stores keys and values in the pages
    as `rope_and_store` does."""
    (rows, size), kv_heads, dims = x.shape, kv.kv_heads, kv.head_size
    query = x.new_empty(rows, heads, dims)
    block_m = 16 if rows <= 128 else 64
    _matmul_rope[(heads + 2 * kv_heads, triton.cdiv(rows, block_m))](
        x, weight, x if bias is None else bias, query, *page_arguments(kv), slots, positions, *tables, rows, heads,
        kv_heads, dims, size, bias is not None, block_m, BLOCK_K, 5,
        x.dtype == torch.float32, num_warps=4, enable_fp_fusion=False,  # a key is rotated as in training
    )  # fmt: skip
    return query


def project_gate_up(fused: FusedLinear, x: Tensor) -> Tensor:
    """silu(gate) · up of x [W, E], by one kernel where that pays."""
    max_hidden = MAX_FUSED_HIDDEN if len(x) <= MAX_SMALL_BATCH_ROWS else MAX_FUSED_HIDDEN_LARGE_BATCH
    weight = fusable_weight(fused, x, max_hidden)
    if weight is None or fused.bias is not None or fused.sizes[0] % 64:
        return silu_and_mul(linear(fused, x))
    return matmul_silu_and_mul(x, weight)


def project_qkv(
    layer: Layer, x: Tensor, kv: LayerPages, slots: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor],
    heads: int, epsilon: float,
) -> Tensor:  # fmt: skip
    """Rotated queries [W, H, D] of x [W, E], by one kernel where that pays; stores keys and values in the pages."""
    weight = fusable_weight(layer.qkv, x, MAX_FUSED_HIDDEN)
    if layer.q_norm is not None and layer.k_norm is not None:
        norms = (layer.q_norm, layer.k_norm)
        return rope_and_store(linear(layer.qkv, x), kv, slots, positions, tables, heads, norms, epsilon)
    if weight is None or kv.head_size not in (32, 64, 128):
        return rope_and_store(linear(layer.qkv, x), kv, slots, positions, tables, heads, None, epsilon)
    return matmul_rope(x, weight, layer.qkv.bias, kv, slots, positions, tables, heads)


def fusable_weight(fused: FusedLinear, x: Tensor, max_hidden: int) -> Tensor | None:
    """The weight of a product that a fused kernel can compute and that is small enough for it to pay."""
    with_adapters = fused.adapters is not None and fused.adapters.in_use
    fits = x.dtype in FUSED_DTYPES and x.shape[1] <= max_hidden and x.shape[1] % BLOCK_K == 0
    return fused.weight if fits and not with_adapters else None
