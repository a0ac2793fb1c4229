"""What lies between two matrix products of a layer, one kernel each, and its gradient.

Rows are tokens [N, ..]. Sums run in a fixed order: the same inputs give the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1056
"""Programs over which a norm's weight gradient is summed up: eight for each of an H200's multiprocessors."""
TILE = 4
"""Rows that a program of it looks at together."""


@triton.jit
def _add_norm(
    x, delta, weight, into, out, epsilon, size: tl.constexpr, block: tl.constexpr, adding: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    inside = place < size
    value = tl.load(x + row * size + place, mask=inside, other=0.0).to(tl.float32)
    if adding:
        value += tl.load(delta + row * size + place, mask=inside, other=0.0).to(tl.float32)
        value = value.to(x.dtype.element_ty).to(tl.float32)
        tl.store(into + row * size + place, value, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / size + epsilon)
    normal = (value * scale).to(x.dtype.element_ty)
    tl.store(out + row * size + place, normal * tl.load(weight + place, mask=inside, other=0.0), mask=inside)


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float, into: Tensor) -> Tensor:
    """x [N, E] + delta goes to `into`, which may be x; gives its RMS norm times weight, in the weight's precision.

    A float32 x is rounded nowhere. In bfloat16, its sums over the layers were a good part of what engine and learner
    disagreed by.
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
    x, weight, by_out, by_sum, gradient, by_delta, by_weight, epsilon, rows, size: tl.constexpr, block: tl.constexpr,
    tile: tl.constexpr, passed: tl.constexpr, weighing: tl.constexpr, apart: tl.constexpr,
) -> None:  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    place = tl.arange(0, block)
    within = place < size
    factor = tl.load(weight + place, mask=within, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros((block,), tl.float32)
    for first in range(program * tile, rows, programs * tile):
        row = first + tl.arange(0, tile)
        at = row[:, None].to(tl.int64) * size + place[None, :]
        inside = (row < rows)[:, None] & within[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        asked = tl.load(by_out + at, mask=inside, other=0.0).to(tl.float32)
        scale = (1.0 / tl.sqrt(tl.sum(value * value, 1) / size + epsilon))[:, None]
        normal = value * scale
        total += tl.sum(asked * normal, 0)
        steered = asked * factor
        found = (steered - normal * (tl.sum(steered * normal, 1) / size)[:, None]) * scale
        if passed:
            found += tl.load(by_sum + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(gradient + at, found, mask=inside)
        if apart:
            tl.store(by_delta + at, found, mask=inside)
    if weighing:
        tl.store(by_weight + program * size + place, total, mask=within)


def norm_backward(
    x: Tensor, weight: Tensor, by_out: Tensor, by_sum: Tensor | None, epsilon: float, weighing: bool,
    delta: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of a norm of x [N, E], and `by_sum` passed on to x beside: by x, by what was added to it (in its own
    precision; None: nothing was) and by weight."""
    rows, size = x.shape
    gradient = torch.empty_like(x)
    apart = delta not in (None, x.dtype)
    by_delta = torch.empty_like(x, dtype=delta) if apart else gradient
    programs = min(triton.cdiv(rows, TILE), PROGRAMS)
    parts = torch.empty(programs, size, dtype=torch.float32, device=x.device) if weighing else gradient
    by_out = by_out.contiguous()
    by_sum = None if by_sum is None else by_sum.contiguous()
    _norm_backward[(programs,)](
        x, weight, by_out, by_out if by_sum is None else by_sum, gradient, by_delta, parts, epsilon, rows, size,
        triton.next_power_of_2(size), TILE, by_sum is not None, weighing, apart, num_warps=4 if size <= 2048 else 8,
    )  # fmt: skip
    by_weight = parts.sum(0).to(weight.dtype) if weighing else None
    return gradient, None if delta is None else by_delta, by_weight


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
    def backward(ctx: Any, by_sum: Tensor | None, by_out: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        weighing = ctx.needs_input_grad[2]
        return *norm_backward(x, weight, by_out, by_sum, ctx.epsilon, weighing, ctx.delta), None


class NormProduct(torch.autograd.Function):
    """(x + delta, the product of its norm with weights that lie side by side). Its norm is not kept but computed again.

    `parameters` are the parts of `weight`, then of `bias`, of `sizes` rows each: the gradients are theirs.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, norm: Tensor, epsilon: float, weight: Tensor, bias: Tensor | None,
        sizes: list[int], *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        into = x if delta is None else torch.empty_like(x)
        normal = add_norm(x, delta, norm, epsilon, into)
        ctx.save_for_backward(into, norm, weight)
        ctx.set_materialize_grads(False)
        ctx.epsilon, ctx.sizes, ctx.biased = epsilon, sizes, bias is not None
        ctx.delta = None if delta is None else delta.dtype
        return into, F.linear(normal, weight, bias)

    @staticmethod
    def backward(ctx: Any, by_sum: Tensor | None, by_product: Tensor) -> tuple[Any, ...]:
        into, norm, weight = ctx.saved_tensors
        normal = add_norm(into, None, norm, ctx.epsilon, into)
        parts = torch.split(by_product.t() @ normal, ctx.sizes)
        if ctx.biased:
            parts += torch.split(by_product.sum(0), ctx.sizes)
        weighing = ctx.needs_input_grad[2]
        found = norm_backward(into, norm, by_product @ weight, by_sum, ctx.epsilon, weighing, ctx.delta)
        return *found, None, None, None, None, *parts


@triton.jit
def _gate(joined, out, width, block: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * block + tl.arange(0, block)
    inside = place < width
    gate = tl.load(joined + row * 2 * width + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(joined + row * 2 * width + width + place, mask=inside, other=0.0)
    silu = (gate * tl.sigmoid(gate)).to(up.dtype)
    tl.store(out + row * width + place, silu * up, mask=inside)


def gate(joined: Tensor) -> Tensor:
    """silu(gate) · up of both side by side [N, 2I]."""
    rows, width = joined.shape[0], joined.shape[1] // 2
    out = joined.new_empty(rows, width)
    _gate[(rows, triton.cdiv(width, 1024))](joined, out, width, 1024, num_warps=4)
    return out


@triton.jit
def _gate_backward(joined, by_out, gradient, width, block: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * block + tl.arange(0, block)
    inside = place < width
    source = row * 2 * width + place
    value = tl.load(joined + source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(joined + source + width, mask=inside, other=0.0).to(tl.float32)
    asked = tl.load(by_out + row * width + place, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(value)
    tl.store(gradient + source, asked * up * sigmoid * (1.0 + value * (1.0 - sigmoid)), mask=inside)
    tl.store(gradient + source + width, asked * value * sigmoid, mask=inside)


def gate_backward(joined: Tensor, by_out: Tensor) -> Tensor:
    gradient = torch.empty_like(joined)
    rows, width = joined.shape[0], joined.shape[1] // 2
    _gate_backward[(rows, triton.cdiv(width, 1024))](joined, by_out.contiguous(), gradient, width, 1024, num_warps=4)
    return gradient


class Gate(torch.autograd.Function):
    """silu(gate) · up; keeps nothing but its input."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor) -> Tensor:
        ctx.save_for_backward(joined)
        return gate(joined)

    @staticmethod
    def backward(ctx: Any, by_out: Tensor) -> Tensor:
        (joined,) = ctx.saved_tensors
        return gate_backward(joined, by_out)


class GateProduct(torch.autograd.Function):
    """silu(gate) · up times a weight; what is multiplied is not kept but computed again."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(joined, weight)
        return F.linear(gate(joined), weight)

    @staticmethod
    def backward(ctx: Any, by_out: Tensor) -> tuple[Tensor, Tensor]:
        joined, weight = ctx.saved_tensors
        return gate_backward(joined, by_out @ weight), by_out.t() @ gate(joined)


@triton.jit
def normed_halves(source, norm, epsilon, size: tl.constexpr):
    """A head of queries or keys [D] that lies at `source`, normed; in two halves, as rotation wants it."""
    half: tl.constexpr = size // 2
    place = tl.arange(0, half)
    first, second = tl.load(source + place), tl.load(source + half + place)
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    total = tl.sum(wide_first * wide_first, 0) + tl.sum(wide_second * wide_second, 0)
    scale = 1.0 / tl.sqrt(total / size + epsilon)
    first = (wide_first * scale).to(first.dtype) * tl.load(norm + place)
    return first, (wide_second * scale).to(second.dtype) * tl.load(norm + half + place)


@triton.jit
def _norm_heads(
    joined, out, query_norm, key_norm, epsilon, heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr
) -> None:
    row, head = tl.program_id(0), tl.program_id(1)
    half: tl.constexpr = size // 2
    place = tl.arange(0, half)
    at = (row.to(tl.int64) * (heads + 2 * kv_heads) + head) * size
    if head >= heads + kv_heads:
        tl.store(out + at + place, tl.load(joined + at + place))
        tl.store(out + at + half + place, tl.load(joined + at + half + place))
    else:
        norm = query_norm if head < heads else key_norm
        first, second = normed_halves(joined + at, norm, epsilon, size)
        tl.store(out + at + place, first)
        tl.store(out + at + half + place, second)


class NormHeads(torch.autograd.Function):
    """Joined projections [N, (H + 2K)·D] with each query's and key's head normed, rounded as decoding rounds it."""

    @staticmethod
    def forward(
        ctx: Any, joined: Tensor, query_norm: Tensor, key_norm: Tensor, epsilon: float, heads: int, kv_heads: int
    ) -> Tensor:
        size = len(query_norm)
        out = torch.empty_like(joined)
        _norm_heads[(joined.shape[0], heads + 2 * kv_heads)](
            joined, out, query_norm, key_norm, epsilon, heads, kv_heads, size, num_warps=1, enable_fp_fusion=False
        )
        ctx.save_for_backward(joined, query_norm, key_norm)
        ctx.sizes = (epsilon, heads, kv_heads, size)
        return out

    @staticmethod
    def backward(ctx: Any, by_out: Tensor) -> tuple[Any, ...]:
        joined, *norms = ctx.saved_tensors
        epsilon, heads, kv_heads, size = ctx.sizes
        sizes = [heads, kv_heads, kv_heads]
        parts = torch.split(joined.view(len(joined), -1, size), sizes, dim=1)
        asked = torch.split(by_out.reshape(len(by_out), -1, size), sizes, dim=1)
        found = []
        for part, norm, wanted in zip(parts[:2], norms, asked[:2], strict=True):
            with torch.enable_grad():
                inputs = part.detach().requires_grad_(), norm.detach().requires_grad_()
                normal = F.rms_norm(inputs[0], (size,), inputs[1], epsilon)
            found.append(torch.autograd.grad(normal, inputs, wanted))
        (by_query, by_query_norm), (by_key, by_key_norm) = found
        by_joined = torch.cat([by_query, by_key, asked[2]], dim=1).flatten(1)
        return by_joined, by_query_norm, by_key_norm, None, None, None


@triton.jit
def _turn(
    joined, positions, cos, sin, width, heads: tl.constexpr, block: tl.constexpr, size: tl.constexpr,
    back: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    half: tl.constexpr = size // 2
    head, place = tl.arange(0, block), tl.arange(0, half)
    inside = (head < heads)[:, None]
    table = tl.load(positions + row) * size + place
    cos_first, cos_second = tl.load(cos + table)[None, :], tl.load(cos + table + half)[None, :]
    sin_first, sin_second = tl.load(sin + table)[None, :], tl.load(sin + table + half)[None, :]
    at = row.to(tl.int64) * width + head[:, None] * size + place[None, :]
    first = tl.load(joined + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(joined + at + half, mask=inside, other=0.0).to(tl.float32)
    if back:
        turned, other = first * cos_first + second * sin_second, second * cos_second + first * sin_first
    else:
        turned, other = first * cos_first + second * sin_first, second * cos_second + first * sin_second
    tl.store(joined + at, turned, mask=inside)
    tl.store(joined + at + half, other, mask=inside)


def turn_(
    joined: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], heads: int, size: int, back: bool = False
) -> None:
    """Rotate the first `heads` heads of joined projections [N, ..·D], in place; `back`: the gradient's way.

    `tables`: cos and sin [context, D] in float32, the first half of sin negated.
    """
    cos, sin = tables
    _turn[(joined.shape[0],)](
        joined, positions, cos, sin, joined.stride(0), heads, triton.next_power_of_2(heads), size, back, num_warps=4,
        enable_fp_fusion=False,  # a key is turned as decoding turns it
    )  # fmt: skip
