"""Kernels of a decode step.

Every kernel takes rows [W, ..] that may differ in length; none reads a length on the host, so a step can be
captured once and replayed. Sums run in a fixed order: the same inputs give the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.dots import KEYS, LOG2E, NOTHING, SEGMENT, dot, fold, merge
from practicum.kernels.layers import normed_halves

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
            norm = query_norm if head < heads else key_norm
            first, second = normed_halves(source, norm, epsilon, size)
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
        heads, kv_heads, size, norms is not None, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return query


@triton.jit
def _attend(
    query, keys, values, homes, positions, out, peaks, sums, scale, slot_stride, head_stride, room,
    heads: tl.constexpr, kv_heads: tl.constexpr, group: tl.constexpr, size: tl.constexpr, block: tl.constexpr,
    segment: tl.constexpr, parts: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    stop = tl.load(positions + row) + 1
    member, place, step = tl.arange(0, group), tl.arange(0, size), tl.arange(0, block)
    each: tl.constexpr = heads // kv_heads
    inside = member < each
    index = row * heads + head * each + member
    wanted = tl.load(query + index[:, None] * size + place[None, :], mask=inside[:, None], other=0.0)
    offset = tl.load(homes + row) * slot_stride + head * head_stride
    whole_peak = tl.full((group,), NOTHING, tl.float32)
    whole_total = tl.zeros((group,), tl.float32)
    whole = tl.zeros((group, size), tl.float32)
    for start in range(part * segment, stop, parts * segment):
        peak = tl.full((group,), NOTHING, tl.float32)
        total = tl.zeros((group, 16), tl.float32)
        mixed = tl.zeros((group, size), tl.float32)
        for at in range(start, tl.minimum(start + segment, stop), block):
            number = at + step
            seen = number < stop
            where = offset + number[:, None] * size + place[None, :]
            key = tl.load(keys + where, mask=seen[:, None], other=0.0)
            score = tl.where(seen[None, :], dot(wanted, tl.trans(key), exact) * scale, NOTHING)
            value = tl.load(values + where, mask=seen[:, None], other=0.0)
            peak, total, mixed = fold(score, value, peak, total, mixed, exact)
        if parts == 1:
            whole_peak, whole_total, whole = merge(whole_peak, whole_total, whole, peak, tl.max(total, 1), mixed)
        else:
            lies = index * room + start // segment
            tl.store(out + lies[:, None] * size + place[None, :], mixed, mask=inside[:, None])
            tl.store(peaks + lies, peak, mask=inside)
            tl.store(sums + lies, tl.max(total, 1), mask=inside)
    if parts == 1:
        result = (whole / whole_total[:, None]).to(out.dtype.element_ty)
        tl.store(out + index[:, None] * size + place[None, :], result, mask=inside[:, None])


@triton.jit
def _gather_parts(
    mixed, peaks, sums, positions, out, room, heads: tl.constexpr, size: tl.constexpr, segment: tl.constexpr
) -> None:
    number = tl.program_id(0)
    one, place = tl.arange(0, 1), tl.arange(0, size)
    peak = tl.full((1,), NOTHING, tl.float32)
    total = tl.zeros((1,), tl.float32)
    whole = tl.zeros((1, size), tl.float32)
    for part in range(tl.cdiv(tl.load(positions + number // heads) + 1, segment)):
        lies = number * room + part + one
        found = tl.load(mixed + lies[:, None] * size + place[None, :])
        peak, total, whole = merge(peak, total, whole, tl.load(peaks + lies), tl.load(sums + lies), found)
    result = (whole / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (number + one[:, None]) * size + place[None, :], result)


def attend(query: Tensor, kv: Tensor, homes: Tensor, positions: Tensor) -> Tensor:
    """One query a row [W, H, D] over its first positions + 1 keys in kv [2, slots, K, keys, D]: [W, H·D]."""
    rows, heads, size = query.shape
    kv_heads, room = kv.shape[2], triton.cdiv(kv.shape[3], SEGMENT)
    wanted = min(room, max(1, PROGRAMS // (rows * kv_heads)))
    parts = triton.next_power_of_2(wanted) if wanted > 1 else 1
    out = torch.empty_like(query)
    exact = query.dtype == torch.float32
    group = max(16, triton.next_power_of_2(heads // kv_heads))
    place, peaks, sums = out, out, out
    if parts > 1:
        place = query.new_empty(rows, heads, room, size, dtype=torch.float32)
        peaks, sums = (query.new_empty(rows, heads, room, dtype=torch.float32) for _ in range(2))
    _attend[(rows, kv_heads, parts)](
        query, kv[0], kv[1], homes, positions, place, peaks, sums, size**-0.5 * LOG2E, kv.stride(1), kv.stride(2), room,
        heads, kv_heads, group, size, KEYS, SEGMENT, parts, exact, num_warps=2, num_stages=2, enable_fp_fusion=False,
    )  # fmt: skip
    if parts > 1:
        _gather_parts[(rows * heads,)](
            place, peaks, sums, positions, out, room, heads, size, SEGMENT, num_warps=2, enable_fp_fusion=False
        )
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
