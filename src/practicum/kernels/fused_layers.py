"""The operations between a layer's matrix products (norms, SiLU and multiplication, rotation) and their gradients.

One kernel each. Rows are tokens [N, ..]. Sums run in a fixed order: the same inputs give the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

WEIGHT_GRAD_PROGRAMS = 1056
"""Programs over which a norm's weight gradient is summed: eight for each of an H200's multiprocessors."""
WEIGHT_GRAD_ROWS = 4
"""Rows that such a program processes at a time."""


@triton.jit
def _add_norm(
    x, delta, weight, into, out, epsilon, size: tl.constexpr, block: tl.constexpr, adding: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < size
    value = tl.load(x + row * size + column, mask=inside, other=0.0).to(tl.float32)
    if adding:
        value += tl.load(delta + row * size + column, mask=inside, other=0.0).to(tl.float32)
        value = value.to(x.dtype.element_ty).to(tl.float32)
        tl.store(into + row * size + column, value, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / size + epsilon)
    normed = (value * scale).to(x.dtype.element_ty)
    tl.store(out + row * size + column, normed * tl.load(weight + column, mask=inside, other=0.0), mask=inside)


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float, into: Tensor) -> Tensor:
    """Store x [N, E] + delta in `into`, which may be x; returns its RMS norm times weight, in the weight's dtype.

    A float32 x is rounded nowhere. With a bfloat16 residual stream, its sums over the layers were a good part of the
    difference between engine and trainer.
    """
    out = torch.empty_like(x, dtype=weight.dtype)
    size = x.shape[1]
    _add_norm[(x.shape[0],)](
        x, x if delta is None else delta, weight, into, out, epsilon, size, triton.next_power_of_2(size),
        delta is not None, num_warps=4 if size <= 2048 else 8,
    )  # fmt: skip
    return out


@triton.jit
def _norm_backward(
    x, weight, grad_out, grad_sum, grad_x, grad_delta, grad_weight, epsilon, rows, size: tl.constexpr,
    block: tl.constexpr, tile: tl.constexpr, with_sum: tl.constexpr, need_weight: tl.constexpr, separate: tl.constexpr,
) -> None:  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, block)
    within = column < size
    w = tl.load(weight + column, mask=within, other=0.0).to(tl.float32)[None, :]
    weight_total = tl.zeros((block,), tl.float32)
    for first in range(program * tile, rows, programs * tile):
        row = first + tl.arange(0, tile)
        offset = row[:, None].to(tl.int64) * size + column[None, :]
        inside = (row < rows)[:, None] & within[None, :]
        value = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_out + offset, mask=inside, other=0.0).to(tl.float32)
        scale = (1.0 / tl.sqrt(tl.sum(value * value, 1) / size + epsilon))[:, None]
        normed = value * scale
        weight_total += tl.sum(grad * normed, 0)
        grad_normed = grad * w
        result = (grad_normed - normed * (tl.sum(grad_normed * normed, 1) / size)[:, None]) * scale
        if with_sum:
            result += tl.load(grad_sum + offset, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_x + offset, result, mask=inside)
        if separate:
            tl.store(grad_delta + offset, result, mask=inside)
    if need_weight:
        tl.store(grad_weight + program * size + column, weight_total, mask=within)


def norm_backward(
    x: Tensor, weight: Tensor, grad_out: Tensor, grad_sum: Tensor | None, epsilon: float, need_weight: bool,
    delta: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of an RMS norm of x [N, E] with respect to x, to what was added to it and to the weight.

    `grad_sum` is the gradient of x + delta itself, which is added. `delta`: the dtype of what was added; None: nothing.
    """
    rows, size = x.shape
    grad_x = torch.empty_like(x)
    separate = delta not in (None, x.dtype)
    grad_delta = torch.empty_like(x, dtype=delta) if separate else grad_x
    programs = min(triton.cdiv(rows, WEIGHT_GRAD_ROWS), WEIGHT_GRAD_PROGRAMS)
    parts = torch.empty(programs, size, dtype=torch.float32, device=x.device) if need_weight else grad_x
    grad_out = grad_out.contiguous()
    grad_sum = None if grad_sum is None else grad_sum.contiguous()
    _norm_backward[(programs,)](
        x, weight, grad_out, grad_out if grad_sum is None else grad_sum, grad_x, grad_delta, parts, epsilon, rows, size,
        triton.next_power_of_2(size), WEIGHT_GRAD_ROWS, grad_sum is not None, need_weight, separate,
        num_warps=4 if size <= 2048 else 8,
    )  # fmt: skip
    grad_weight = parts.sum(0).to(weight.dtype) if need_weight else None
    return grad_x, None if delta is None else grad_delta, grad_weight


class AddNorm(torch.autograd.Function):
    """(x + delta, its norm times weight); without delta, (x, its norm times weight)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        into = x if delta is None else torch.empty_like(x)
        out = add_norm(x, delta, weight, epsilon, into)
        ctx.save_for_backward(into, weight)
        ctx.set_materialize_grads(False)
        ctx.epsilon, ctx.delta = epsilon, None if delta is None else delta.dtype
        return into, out

    @staticmethod
    def backward(ctx: Any, grad_sum: Tensor | None, grad_out: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        need_weight = ctx.needs_input_grad[2]
        return *norm_backward(x, weight, grad_out, grad_sum, ctx.epsilon, need_weight, ctx.delta), None


class NormLinear(torch.autograd.Function):
    """(x + delta, its norm times weights joined in one matrix). The norm is not saved but computed again.

    `parameters` are the parts of `weight`, then of `bias`, of `sizes` rows each: the gradients go to them.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, norm: Tensor, epsilon: float, weight: Tensor, bias: Tensor | None,
        sizes: list[int], *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        into = x if delta is None else torch.empty_like(x)
        normed = add_norm(x, delta, norm, epsilon, into)
        ctx.save_for_backward(into, norm, weight)
        ctx.set_materialize_grads(False)
        ctx.epsilon, ctx.sizes, ctx.biased = epsilon, sizes, bias is not None
        ctx.delta = None if delta is None else delta.dtype
        return into, F.linear(normed, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_sum: Tensor | None, grad_product: Tensor) -> tuple[Any, ...]:
        into, norm, weight = ctx.saved_tensors
        normed = add_norm(into, None, norm, ctx.epsilon, into)
        parts = torch.split(grad_product.t() @ normed, ctx.sizes)
        if ctx.biased:
            parts += torch.split(grad_product.sum(0), ctx.sizes)
        need_weight = ctx.needs_input_grad[2]
        grads = norm_backward(into, norm, grad_product @ weight, grad_sum, ctx.epsilon, need_weight, ctx.delta)
        return *grads, None, None, None, None, *parts


@triton.jit
def _silu_and_mul(joined, out, width, block: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    gate = tl.load(joined + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(joined + row * 2 * width + width + column, mask=inside, other=0.0)
    silu = (gate * tl.sigmoid(gate)).to(up.dtype)
    tl.store(out + row * width + column, silu * up, mask=inside)


def silu_and_mul(joined: Tensor) -> Tensor:
    """silu(gate) · up [N, I] of both side by side [N, 2I]."""
    rows, width = joined.shape[0], joined.shape[1] // 2
    out = joined.new_empty(rows, width)
    _silu_and_mul[(rows, triton.cdiv(width, 1024))](joined, out, width, 1024, num_warps=4)
    return out


@triton.jit
def _silu_and_mul_backward(joined, grad_out, grad_joined, width, block: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    source = row * 2 * width + column
    gate = tl.load(joined + source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(joined + source + width, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_out + row * width + column, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    tl.store(grad_joined + source, grad * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)), mask=inside)
    tl.store(grad_joined + source + width, grad * gate * sigmoid, mask=inside)


def silu_and_mul_backward(joined: Tensor, grad_out: Tensor) -> Tensor:
    """The gradient of `silu_and_mul` with respect to its input [N, 2I]."""
    grad_joined = torch.empty_like(joined)
    rows, width = joined.shape[0], joined.shape[1] // 2
    _silu_and_mul_backward[(rows, triton.cdiv(width, 1024))](
        joined, grad_out.contiguous(), grad_joined, width, 1024, num_warps=4
    )
    return grad_joined


class SiluAndMul(torch.autograd.Function):
    """silu(gate) · up; saves nothing but its input."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor) -> Tensor:
        ctx.save_for_backward(joined)
        return silu_and_mul(joined)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Tensor:
        (joined,) = ctx.saved_tensors
        return silu_and_mul_backward(joined, grad_out)


class SiluAndMulLinear(torch.autograd.Function):
    """silu(gate) · up times a weight; the left factor is not saved but computed again."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(joined, weight)
        return F.linear(silu_and_mul(joined), weight)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor]:
        joined, weight = ctx.saved_tensors
        return silu_and_mul_backward(joined, grad_out @ weight), grad_out.t() @ silu_and_mul(joined)


@triton.jit
def normed_halves(source, norm, epsilon, size: tl.constexpr):
    """The RMS norm of a query's or key's head [D] at `source`, in two halves, as the rotation takes it."""
    half: tl.constexpr = size // 2
    dim = tl.arange(0, half)
    first, second = tl.load(source + dim), tl.load(source + half + dim)
    a, b = first.to(tl.float32), second.to(tl.float32)
    square_sum = tl.sum(a * a, 0) + tl.sum(b * b, 0)
    scale = 1.0 / tl.sqrt(square_sum / size + epsilon)
    first = (a * scale).to(first.dtype) * tl.load(norm + dim)
    return first, (b * scale).to(second.dtype) * tl.load(norm + half + dim)


@triton.jit
def _head_norm(
    joined, out, query_norm, key_norm, epsilon, heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr
) -> None:
    row, head = tl.program_id(0), tl.program_id(1)
    half: tl.constexpr = size // 2
    dim = tl.arange(0, half)
    offset = (row.to(tl.int64) * (heads + 2 * kv_heads) + head) * size
    if head >= heads + kv_heads:
        tl.store(out + offset + dim, tl.load(joined + offset + dim))
        tl.store(out + offset + half + dim, tl.load(joined + offset + half + dim))
    else:
        norm = query_norm if head < heads else key_norm
        first, second = normed_halves(joined + offset, norm, epsilon, size)
        tl.store(out + offset + dim, first)
        tl.store(out + offset + half + dim, second)


class HeadNorm(torch.autograd.Function):
    """Joined projections [N, (H + 2K)·D] with each query's and key's head normed, rounded as in decoding."""

    @staticmethod
    def forward(
        ctx: Any, joined: Tensor, query_norm: Tensor, key_norm: Tensor, epsilon: float, heads: int, kv_heads: int
    ) -> Tensor:
        size = len(query_norm)
        out = torch.empty_like(joined)
        _head_norm[(joined.shape[0], heads + 2 * kv_heads)](
            joined, out, query_norm, key_norm, epsilon, heads, kv_heads, size, num_warps=1, enable_fp_fusion=False
        )
        ctx.save_for_backward(joined, query_norm, key_norm)
        ctx.sizes = (epsilon, heads, kv_heads, size)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
        joined, *norms = ctx.saved_tensors
        epsilon, heads, kv_heads, size = ctx.sizes
        sizes = [heads, kv_heads, kv_heads]
        parts = torch.split(joined.view(len(joined), -1, size), sizes, dim=1)
        grads = torch.split(grad_out.reshape(len(grad_out), -1, size), sizes, dim=1)
        results = []
        for part, norm, grad in zip(parts[:2], norms, grads[:2], strict=True):
            with torch.enable_grad():
                inputs = part.detach().requires_grad_(), norm.detach().requires_grad_()
                normed = F.rms_norm(inputs[0], (size,), inputs[1], epsilon)
            results.append(torch.autograd.grad(normed, inputs, grad))
        (grad_query, grad_query_norm), (grad_key, grad_key_norm) = results
        grad_joined = torch.cat([grad_query, grad_key, grads[2]], dim=1).flatten(1)
        return grad_joined, grad_query_norm, grad_key_norm, None, None, None


@triton.jit
def _rope(
    joined, positions, cos, sin, width, heads: tl.constexpr, block: tl.constexpr, size: tl.constexpr,
    inverse: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    half: tl.constexpr = size // 2
    head, dim = tl.arange(0, block), tl.arange(0, half)
    inside = (head < heads)[:, None]
    angle = tl.load(positions + row) * size + dim
    cos_first, cos_second = tl.load(cos + angle)[None, :], tl.load(cos + angle + half)[None, :]
    sin_first, sin_second = tl.load(sin + angle)[None, :], tl.load(sin + angle + half)[None, :]
    offset = row.to(tl.int64) * width + head[:, None] * size + dim[None, :]
    first = tl.load(joined + offset, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(joined + offset + half, mask=inside, other=0.0).to(tl.float32)
    if inverse:
        rotated, other = first * cos_first + second * sin_second, second * cos_second + first * sin_first
    else:
        rotated, other = first * cos_first + second * sin_first, second * cos_second + first * sin_second
    tl.store(joined + offset, rotated, mask=inside)
    tl.store(joined + offset + half, other, mask=inside)


def rope_(
    joined: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], heads: int, size: int, inverse: bool = False
) -> None:
    """Rotate the first `heads` heads of joined projections [N, ..·D], in place; `inverse`: backwards, for a gradient.

    `tables`: cos and sin [context, D] in float32, the first half of sin negated.
    """
    cos, sin = tables
    _rope[(joined.shape[0],)](
        joined, positions, cos, sin, joined.stride(0), heads, triton.next_power_of_2(heads), size, inverse, num_warps=4,
        enable_fp_fusion=False,  # a key is rotated as in decoding
    )  # fmt: skip
