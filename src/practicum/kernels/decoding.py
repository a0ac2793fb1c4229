"""Kernels of a decode step.

Every kernel takes rows [W, ..] that may differ in length; none reads a length on the host, so a step can be
captured once and replayed. Sums run in a fixed order: the same inputs give the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.dots import dot, mix

KEYS = 64
"""Keys that a program looks at together."""
PROGRAMS = 1024
"""Programs that fill a GPU: long rows of a small batch are cut up until there are about so many."""
VOCABULARY = 4096
"""Logits that a program looks at together."""


@triton.jit
def _turn_and_keep(
    joined, query, keys, values, homes, positions, cos, sin, query_norm, key_norm, epsilon,
    slot_stride, head_stride, heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, normed: tl.constexpr,
) -> None:  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    half: tl.constexpr = size // 2
    place = tl.arange(0, half)
    position = tl.load(positions + row)
    home = tl.load(homes + row) * slot_stride
    source = joined + (row * (heads + 2 * kv_heads) + head) * size
    first, second = tl.load(source + place), tl.load(source + half + place)
    if head >= heads + kv_heads:
        target = values + home + (head - heads - kv_heads) * head_stride + position * size
        tl.store(target + place, first)
        tl.store(target + half + place, second)
    else:
        if normed:
            wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
            total = tl.sum(wide_first * wide_first, 0) + tl.sum(wide_second * wide_second, 0)
            scale = 1.0 / tl.sqrt(total / size + epsilon)
            norm = query_norm if head < heads else key_norm
            first = (wide_first * scale).to(first.dtype) * tl.load(norm + place)
            second = (wide_second * scale).to(second.dtype) * tl.load(norm + half + place)
        a, b = first.to(tl.float32), second.to(tl.float32)
        table = position * size + place
        turned = a * tl.load(cos + table) + b * tl.load(sin + table)
        other = b * tl.load(cos + table + half) + a * tl.load(sin + table + half)
        if head < heads:
            target = query + (row * heads + head) * size
        else:
            target = keys + home + (head - heads) * head_stride + position * size
        tl.store(target + place, turned.to(first.dtype))
        tl.store(target + half + place, other.to(first.dtype))


def turn_and_keep(
    joined: Tensor, kv: Tensor, homes: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], heads: int,
    norms: tuple[Tensor, Tensor] | None, epsilon: float,
) -> Tensor:  # fmt: skip
    """Rotated queries [W, H, D] of joined projections [W, (H + 2K)·D]; keys and values go to kv [2, slots, K, keys, D],
    at each row's home.
    `tables`: cos and sin [context, D] in float32, the first half of sin negated.
    """
    cos, sin = tables
    rows, kv_heads, size = joined.shape[0], kv.shape[2], kv.shape[4]
    query = joined.new_empty(rows, heads, size)
    first, second = norms if norms is not None else (cos, cos)
    _turn_and_keep[(rows, heads + 2 * kv_heads)](
        joined, query, kv[0], kv[1], homes, positions, cos, sin, first, second, epsilon, kv.stride(1), kv.stride(2),
        heads, kv_heads, size, norms is not None, num_warps=1,
    )  # fmt: skip
    return query


@triton.jit
def _attend(
    query, keys, values, homes, positions, out, peaks, sums, scale, slot_stride, head_stride,
    heads: tl.constexpr, kv_heads: tl.constexpr, group: tl.constexpr, size: tl.constexpr, block: tl.constexpr,
    parts: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(positions + row) + 1
    share = tl.cdiv(tl.cdiv(length, parts), block) * block
    start = part * share
    stop = tl.minimum(start + share, length)
    member, place, step = tl.arange(0, group), tl.arange(0, size), tl.arange(0, block)
    each: tl.constexpr = heads // kv_heads
    asked = query + (row * heads + head * each + member[:, None]) * size + place[None, :]
    wanted = tl.load(asked, mask=member[:, None] < each, other=0.0)
    offset = tl.load(homes + row) * slot_stride + head * head_stride
    peak = tl.full((group,), -float("inf"), tl.float32)
    total = tl.zeros((group,), tl.float32)
    mixed = tl.zeros((group, size), tl.float32)
    for at in range(start, stop, block):
        number = at + step
        seen = number < stop
        where = offset + number[:, None] * size + place[None, :]
        key = tl.load(keys + where, mask=seen[:, None], other=0.0)
        score = dot(wanted, tl.trans(key), exact) * scale
        score = tl.where(seen[None, :], score, -float("inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        fade = tl.exp(peak - higher)
        total = total * fade + tl.sum(weight, 1)
        value = tl.load(values + where, mask=seen[:, None], other=0.0)
        mixed = mixed * fade[:, None] + mix(weight, value, exact)
        peak = higher
    index = (row * heads + head * each + member) * parts + part
    inside = member < each
    if parts == 1:
        result = (mixed / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + index[:, None] * size + place[None, :], result, mask=inside[:, None])
    else:
        tl.store(out + index[:, None] * size + place[None, :], mixed, mask=inside[:, None])
        tl.store(peaks + index, peak, mask=inside)
        tl.store(sums + index, total, mask=inside)


@triton.jit
def _gather_parts(mixed, peaks, sums, out, size: tl.constexpr, parts: tl.constexpr) -> None:
    head = tl.program_id(0)
    part, place = tl.arange(0, parts), tl.arange(0, size)
    peak = tl.load(peaks + head * parts + part)
    weight = tl.exp(peak - tl.max(peak, 0))
    total = tl.sum(weight * tl.load(sums + head * parts + part), 0)
    values = tl.load(mixed + (head * parts + part[:, None]) * size + place[None, :])
    result = tl.sum(values * weight[:, None], 0) / total
    tl.store(out + head * size + place, result.to(out.dtype.element_ty))


def attend(query: Tensor, kv: Tensor, homes: Tensor, positions: Tensor) -> Tensor:
    """One query a row [W, H, D] over its first positions + 1 keys in kv [2, slots, K, keys, D]: [W, H·D]."""
    rows, heads, size = query.shape
    kv_heads = kv.shape[2]
    wanted = max(1, PROGRAMS // (rows * kv_heads))
    parts = min(16, triton.next_power_of_2(wanted) if wanted > 1 else 1)
    out = torch.empty_like(query)
    exact = query.dtype == torch.float32
    group = max(16, triton.next_power_of_2(heads // kv_heads))
    place, peaks, sums = out, out, out
    if parts > 1:
        place = query.new_empty(rows, heads, parts, size, dtype=torch.float32)
        peaks, sums = (query.new_empty(rows, heads, parts, dtype=torch.float32) for _ in range(2))
    _attend[(rows, kv_heads, parts)](
        query, kv[0], kv[1], homes, positions, place, peaks, sums, size**-0.5, kv.stride(1), kv.stride(2),
        heads, kv_heads, group, size, KEYS, parts, exact, num_warps=4, num_stages=3,
    )  # fmt: skip
    if parts > 1:
        _gather_parts[(rows * heads,)](place, peaks, sums, out, size, parts, num_warps=2)
    return out.view(rows, heads * size)


@triton.jit
def _sample(logits, noise, temperatures, steps, homes, ids, logprobs, noise_width, size, block: tl.constexpr) -> None:
    row = tl.program_id(0)
    place = tl.arange(0, block)
    source = logits + row.to(tl.int64) * size
    home = tl.load(homes + row)
    heat = tl.load(temperatures + home)
    greedy = heat == 0.0
    cool = 1.0 / tl.where(greedy, 1.0, heat)
    peak = -float("inf")
    best = 0
    for at in range(0, size, block):
        value = tl.load(source + at + place, mask=at + place < size, other=-float("inf")).to(tl.float32) * cool
        top = tl.max(value, 0)
        best = tl.where(top > peak, at + tl.argmax(value, 0), best)
        peak = tl.maximum(peak, top)
    total = 0.0
    for at in range(0, size, block):
        value = tl.load(source + at + place, mask=at + place < size, other=-float("inf")).to(tl.float32) * cool
        total += tl.sum(tl.exp(value - peak), 0)
    uniform = tl.load(noise + home * noise_width + tl.minimum(tl.load(steps + row), noise_width - 1))
    target = uniform * total
    before = 0.0
    found = size
    for at in range(0, size, block):
        value = tl.load(source + at + place, mask=at + place < size, other=-float("inf")).to(tl.float32) * cool
        weight = tl.exp(value - peak)
        reached = (tl.cumsum(weight, 0) + before > target) & (weight > 0.0)
        found = tl.minimum(found, tl.min(tl.where(reached, at + place, size), 0))
        before += tl.sum(weight, 0)
    chosen = tl.where(greedy | (found == size), best, found)
    tl.store(ids + row, chosen.to(tl.int64))
    tl.store(logprobs + row, tl.load(source + chosen).to(tl.float32) * cool - peak - tl.log(total))


def sample(logits: Tensor, noise: Tensor, temperatures: Tensor, steps: Tensor, homes: Tensor) -> tuple[Tensor, Tensor]:
    """One id a row by its uniform number noise[home, step] (at temperature 0 the most likely), and its log-prob."""
    rows, size = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _sample[(rows,)](
        logits, noise, temperatures, steps, homes, ids, logprobs, noise.stride(0), size, VOCABULARY, num_warps=8
    )  # fmt: skip
    return ids, logprobs
