"""Products of a decode step that go on to what follows them: rotation and KV write, silu and gate.

A small product's time is mostly that of starting and of waiting for memory, and a kernel after it takes as long again.
They round where two kernels would, and their sums run in cuBLAS's order: not a bit differs (an H200, all sizes from
SmolLM2-135M's to a 7 B model's, 16 to 1,024 rows). Large products are cuBLAS's business.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.decode_attention import turn_and_keep
from practicum.kernels.fused_layers import gate
from practicum.kernels.packed_forward import product
from practicum.models.decoder import Fused, Layer

DEEP = 64
"""Terms of a sum that are taken at a time."""
SMALL, SMALLEST = 1024, 640
"""Hidden sizes up to which going on pays: for rotation, and for the gate with few rows; for the gate with any."""
FEW = 64
HALF = (torch.bfloat16, torch.float16)
"""In float32 sums would run in another order than cuBLAS's."""
TILES = {32: (16, 32, 5), 128: (64, 32, 5), 256: (64, 64, 5)}
"""Up to so many rows: the rows and columns of a program of the gate's, and the loads under way; beyond, `LARGE`."""
LARGE = (64, 64, 3)


@triton.jit
def _advance(total, rows, columns, exact: tl.constexpr):
    if exact:
        return tl.dot(rows, columns, total, input_precision="ieee")
    else:
        return tl.dot(rows, columns, total)


@triton.jit
def _product_gate(
    x, weight, out, rows, width, size: tl.constexpr, high: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr,
    stages: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(1) * high + tl.arange(0, high)
    column = tl.program_id(0) * wide + tl.arange(0, wide)
    term = tl.arange(0, deep)
    inside = (row < rows)[:, None]
    source = x + row[:, None] * size + term[None, :]
    gates = weight + column[None, :] * size + term[:, None]
    ups = gates + width * size
    first, second = tl.zeros((high, wide), tl.float32), tl.zeros((high, wide), tl.float32)
    for at in tl.range(0, size, deep, num_stages=stages):
        value = tl.load(source + at, mask=inside, other=0.0)
        first = _advance(first, value, tl.load(gates + at), exact)
        second = _advance(second, value, tl.load(ups + at), exact)
    kind = out.dtype.element_ty
    gated = first.to(kind).to(tl.float32)
    silu = (gated * tl.sigmoid(gated)).to(kind)
    tl.store(out + row[:, None] * width + column[None, :], silu * second.to(kind), mask=inside)


def product_gate(x: Tensor, weight: Tensor) -> Tensor:
    """silu(gate) · up of x [W, E], by both weights side by side [2I, E]: [W, I]."""
    (rows, size), width = x.shape, weight.shape[0] // 2
    out = x.new_empty(rows, width)
    high, wide, stages = next((tile for most, tile in TILES.items() if rows <= most), LARGE)
    _product_gate[(width // wide, triton.cdiv(rows, high))](
        x, weight, out, rows, width, size, high, wide, DEEP, stages, x.dtype == torch.float32, num_warps=4
    )
    return out


@triton.jit
def _product_turn(
    x, weight, bias, query, keys, values, homes, positions, cos, sin, slot_stride, head_stride, rows,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_size: tl.constexpr, size: tl.constexpr, biased: tl.constexpr,
    high: tl.constexpr, deep: tl.constexpr, stages: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    half: tl.constexpr = head_size // 2
    head = tl.program_id(0)
    row = tl.program_id(1) * high + tl.arange(0, high)
    term, place = tl.arange(0, deep), tl.arange(0, half)
    here = row < rows
    inside = here[:, None]
    source = x + row[:, None] * size + term[None, :]
    front = weight + (head * head_size + place[None, :]) * size + term[:, None]
    back = front + half * size
    first, second = tl.zeros((high, half), tl.float32), tl.zeros((high, half), tl.float32)
    for at in tl.range(0, size, deep, num_stages=stages):
        value = tl.load(source + at, mask=inside, other=0.0)
        first = _advance(first, value, tl.load(front + at), exact)
        second = _advance(second, value, tl.load(back + at), exact)
    if biased:
        first += tl.load(bias + head * head_size + place).to(tl.float32)[None, :]
        second += tl.load(bias + head * head_size + half + place).to(tl.float32)[None, :]
    kind = query.dtype.element_ty
    position = tl.load(positions + row, mask=here, other=0)
    kept = tl.load(homes + row, mask=here, other=0) * slot_stride + position * head_size
    if head >= heads + kv_heads:
        target = values + (kept + (head - heads - kv_heads) * head_stride)[:, None] + place[None, :]
        tl.store(target, first.to(kind), mask=inside)
        tl.store(target + half, second.to(kind), mask=inside)
    else:
        a, b = first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)
        table = (position * head_size)[:, None] + place[None, :]
        turned = a * tl.load(cos + table) + b * tl.load(sin + table)
        other = b * tl.load(cos + table + half) + a * tl.load(sin + table + half)
        if head < heads:
            target = query + (row * heads + head)[:, None] * head_size + place[None, :]
        else:
            target = keys + (kept + (head - heads) * head_stride)[:, None] + place[None, :]
        tl.store(target, turned.to(kind), mask=inside)
        tl.store(target + half, other.to(kind), mask=inside)


def product_turn(
    x: Tensor, weight: Tensor, bias: Tensor | None, kv: Tensor, homes: Tensor, positions: Tensor,
    tables: tuple[Tensor, Tensor], heads: int,
) -> Tensor:  # fmt: skip
    """Rotated queries [W, H, D] of x [W, E] by the joined weights [(H + 2K)·D, E]; keys and values go to
    kv [2, slots, K, keys, D], as `turn_and_keep` puts them there."""
    (rows, size), kv_heads, head_size = x.shape, kv.shape[2], kv.shape[4]
    query = x.new_empty(rows, heads, head_size)
    high = 16 if rows <= 128 else 64
    _product_turn[(heads + 2 * kv_heads, triton.cdiv(rows, high))](
        x, weight, x if bias is None else bias, query, kv[0], kv[1], homes, positions, *tables, kv.stride(1),
        kv.stride(2), rows, heads, kv_heads, head_size, size, bias is not None, high, DEEP, 5,
        x.dtype == torch.float32, num_warps=4, enable_fp_fusion=False,  # a key is turned as the learner turns it
    )  # fmt: skip
    return query


def gated(fused: Fused, x: Tensor) -> Tensor:
    """silu(gate) · up of x [W, E]."""
    most = SMALL if len(x) <= FEW else SMALLEST
    weight = plain_weight(fused, x, most)
    if weight is None or fused.bias is not None or fused.sizes[0] % 64:
        return gate(product(fused, x))
    return product_gate(x, weight)


def queries(
    layer: Layer, x: Tensor, kv: Tensor, homes: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], heads: int,
    epsilon: float,
) -> Tensor:  # fmt: skip
    """Rotated queries [W, H, D] of x [W, E]; keys and values go to where they are kept."""
    weight = plain_weight(layer.qkv, x, SMALL)
    if layer.q_norm is not None and layer.k_norm is not None:
        norms = (layer.q_norm, layer.k_norm)
        return turn_and_keep(product(layer.qkv, x), kv, homes, positions, tables, heads, norms, epsilon)
    if weight is None or kv.shape[4] not in (32, 64, 128):
        return turn_and_keep(product(layer.qkv, x), kv, homes, positions, tables, heads, None, epsilon)
    return product_turn(x, weight, layer.qkv.bias, kv, homes, positions, tables, heads)


def plain_weight(fused: Fused, x: Tensor, most: int) -> Tensor | None:
    """The matrix of a product that can go on, if it is small enough for it to pay."""
    dressed = fused.aside is not None and fused.aside.worn.columns is not None
    fits = x.dtype in HALF and x.shape[1] <= most and x.shape[1] % DEEP == 0
    return fused.weight if fits and not dressed else None
