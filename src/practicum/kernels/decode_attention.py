"""Kernels of a decode step.

Every kernel takes rows [W, ..] that may differ in length; none reads a length on the host, so a step can be
captured once and replayed. Sums run in a fixed order: the same inputs give the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.fused_layers import normed_halves
from practicum.kernels.online_softmax import KEYS, LOG2E, NOTHING, SEGMENT, dot, fold, merge
from practicum.kernels.shared_prefix import SharedPrefixBatch

PROGRAMS = 1024
"""Programs that fill a GPU: long rows of a small batch are cut up until there are about so many."""
TOGETHER = 32
"""Queries of one head of keys that rows of a crew bring along together."""
VOCABULARY = 4096
"""Logits that a program looks at together."""


@triton.jit
def _enter(last, positions, homes, table, x, here, context, size: tl.constexpr, block: tl.constexpr) -> None:
    row, place = tl.program_id(0), tl.arange(0, block)
    inside = place < size
    home = tl.load(homes + row)
    tl.store(here + row, tl.minimum(tl.load(positions + home), context - 1))
    found = tl.load(table + tl.load(last + home) * size + place, mask=inside, other=0.0)
    tl.store(x + row.to(tl.int64) * size + place, found.to(tl.float32), mask=inside)


def enter(last: Tensor, positions: Tensor, homes: Tensor, table: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """What a step begins with: the embedding of each row's last token [W, E] in float32, and its position [W], of rows
    that ended long ago the last there is."""
    rows, size = len(homes), table.shape[1]
    x = torch.empty(rows, size, dtype=torch.float32, device=table.device)
    here = torch.empty_like(homes)
    _enter[(rows,)](last, positions, homes, table, x, here, context, size, triton.next_power_of_2(size), num_warps=4)
    return x, here


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
    query, keys, values, homes, positions, commons, leads, out, states, peaks, sums, scale, slot_stride, head_stride,
    room, heads: tl.constexpr, kv_heads: tl.constexpr, group: tl.constexpr, size: tl.constexpr, block: tl.constexpr,
    segment: tl.constexpr, parts: tl.constexpr, exact: tl.constexpr, led: tl.constexpr, sharing: tl.constexpr,
) -> None:  # fmt: skip
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    stop = tl.load(positions + row) + 1
    member, place, step = tl.arange(0, group), tl.arange(0, size), tl.arange(0, block)
    each: tl.constexpr = heads // kv_heads
    inside = member < each
    index = row * heads + head * each + member
    wanted = tl.load(query + index[:, None] * size + place[None, :], mask=inside[:, None], other=0.0)
    offset = tl.load(homes + row) * slot_stride + head * head_stride
    common, leading = 0, offset
    if led:
        common = tl.load(commons + row)
        leading = tl.load(leads + row) * slot_stride + head * head_stride
    whole_peak = tl.full((group,), NOTHING, tl.float32)
    whole_total = tl.zeros((group,), tl.float32)
    whole = tl.zeros((group, size), tl.float32)
    for start in range(part * segment, stop, parts * segment):
        lies = index * room + start // segment
        begin = start
        peak = tl.full((group,), NOTHING, tl.float32)
        total = tl.zeros((group, 16), tl.float32)
        mixed = tl.zeros((group, size), tl.float32)
        if sharing:  # what comes from keys that others see as well is there already
            known = inside & (start < common)
            begin = tl.maximum(start, tl.minimum(common, start + segment))
            peak = tl.load(peaks + lies, mask=known, other=NOTHING)
            total += tl.load(sums + lies, mask=known, other=0.0)[:, None]
            mixed = tl.load(states + lies[:, None] * size + place[None, :], mask=known[:, None], other=0.0)
        for at in range(begin, tl.minimum(start + segment, stop), block):
            number = at + step
            seen = number < stop
            where = tl.where(at < common, leading, offset) + number[:, None] * size + place[None, :]
            key = tl.load(keys + where, mask=seen[:, None], other=0.0)
            score = tl.where(seen[None, :], dot(wanted, tl.trans(key), exact) * scale, NOTHING)
            value = tl.load(values + where, mask=seen[:, None], other=0.0)
            peak, total, mixed = fold(score, value, peak, total, mixed, exact)
        if parts == 1:
            whole_peak, whole_total, whole = merge(whole_peak, whole_total, whole, peak, tl.max(total, 1), mixed)
        else:
            tl.store(states + lies[:, None] * size + place[None, :], mixed, mask=inside[:, None])
            tl.store(peaks + lies, peak, mask=inside)
            tl.store(sums + lies, tl.max(total, 1), mask=inside)
    if parts == 1:
        result = (whole / whole_total[:, None]).to(out.dtype.element_ty)
        tl.store(out + index[:, None] * size + place[None, :], result, mask=inside[:, None])


@triton.jit
def _attend_together(
    query, keys, values, members, leads, commons, states, peaks, sums, scale, slot_stride, head_stride, room,
    heads: tl.constexpr, kv_heads: tl.constexpr, pad: tl.constexpr, most: tl.constexpr, size: tl.constexpr,
    block: tl.constexpr, segment: tl.constexpr, parts: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    crew, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    common = tl.load(commons + crew)
    if part * segment < common:
        each: tl.constexpr = heads // kv_heads
        number, place, step = tl.arange(0, most * pad), tl.arange(0, size), tl.arange(0, block)
        row = tl.load(members + crew * most + number // pad)
        inside = (number % pad < each) & (row >= 0)
        index = row * heads + head * each + number % pad
        wanted = tl.load(query + index[:, None] * size + place[None, :], mask=inside[:, None], other=0.0)
        offset = tl.load(leads + crew) * slot_stride + head * head_stride
        for start in range(part * segment, common, parts * segment):
            peak = tl.full((most * pad,), NOTHING, tl.float32)
            total = tl.zeros((most * pad, 16), tl.float32)
            mixed = tl.zeros((most * pad, size), tl.float32)
            for at in range(start, tl.minimum(start + segment, common), block):
                where = offset + (at + step)[:, None] * size + place[None, :]
                score = dot(wanted, tl.trans(tl.load(keys + where)), exact) * scale
                peak, total, mixed = fold(score, tl.load(values + where), peak, total, mixed, exact)
            lies = index * room + start // segment
            tl.store(states + lies[:, None] * size + place[None, :], mixed, mask=inside[:, None])
            tl.store(peaks + lies, peak, mask=inside)
            tl.store(sums + lies, tl.max(total, 1), mask=inside)


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


def crew_size(heads: int, kv_heads: int) -> int:
    """How many rows go through keys together: as many as fill a product."""
    return int(max(2, TOGETHER // triton.next_power_of_2(heads // kv_heads)))


def attend(
    query: Tensor,
    kv: Tensor,
    homes: Tensor,
    positions: Tensor,
    crews: SharedPrefixBatch | None = None,
    together: bool = False,
) -> Tensor:
    """One query a row [W, H, D] over its first positions + 1 keys in kv [2, slots, K, keys, D]: [W, H·D].

    Keys that `crews` have in common, whole blocks of `KEYS`, are read at the home of one of them, by each row or,
    `together`, once for all; it changes no bit.
    """
    rows, heads, size = query.shape
    kv_heads, room = kv.shape[2], triton.cdiv(kv.shape[3], SEGMENT)
    parts = _parts(rows * kv_heads, room)
    out = torch.empty_like(query)
    exact = query.dtype == torch.float32
    pad = triton.next_power_of_2(heads // kv_heads)
    states, peaks, sums = out, out, out
    if parts > 1 or together:
        states = query.new_empty(rows, heads, room, size, dtype=torch.float32)
        peaks, sums = (query.new_empty(rows, heads, room, dtype=torch.float32) for _ in range(2))
    common = (states, peaks, sums, size**-0.5 * LOG2E, kv.stride(1), kv.stride(2), room, heads, kv_heads)
    if crews is not None and together:
        count, most = crews.members.shape
        apart = _parts(count * kv_heads, room)
        _attend_together[(count, kv_heads, apart)](
            query, kv[0], kv[1], crews.members, crews.leaders, crews.lengths, *common, pad, most, size, KEYS,
            SEGMENT, apart, exact, num_warps=4, num_stages=3, enable_fp_fusion=False,
        )  # fmt: skip
    of_rows = (positions, homes) if crews is None else (crews.row_lengths, crews.row_leaders)
    _attend[(rows, kv_heads, parts)](
        query, kv[0], kv[1], homes, positions, *of_rows, out, *common, max(16, pad), size, KEYS, SEGMENT, parts, exact,
        crews is not None, together, num_warps=2, num_stages=2, enable_fp_fusion=False,
    )  # fmt: skip
    if parts > 1:
        _gather_parts[(rows * heads,)](
            states, peaks, sums, positions, out, room, heads, size, SEGMENT, num_warps=2, enable_fp_fusion=False
        )
    return out.view(rows, heads * size)


def _parts(programs: int, room: int) -> int:
    """Over how many programs keys are shared out, where there would be few."""
    wanted = min(room, max(1, PROGRAMS // programs))
    return int(triton.next_power_of_2(wanted)) if wanted > 1 else 1


@triton.jit(do_not_specialize=["column"])
def _sample(
    logits, noise, temperatures, homes, last, positions, steps, found, column, spare, noise_width, burst, size,
    block: tl.constexpr, blocks: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    place, order = tl.arange(0, block), tl.arange(0, blocks)
    source = logits + row.to(tl.int64) * size
    home = tl.load(homes + row)
    temperature = tl.load(temperatures + home)
    greedy = temperature == 0.0
    cool = 1.0 / tl.where(greedy, 1.0, temperature)
    peaks = tl.full((blocks,), -float("inf"), tl.float32)
    totals = tl.zeros((blocks,), tl.float32)
    for number in range(tl.cdiv(size, block)):
        at = number * block + place
        value = tl.load(source + at, mask=at < size, other=-float("inf")).to(tl.float32) * cool
        top = tl.max(value, 0)
        total = tl.sum(tl.exp(value - tl.maximum(top, -1e30)), 0)
        peaks, totals = tl.where(order == number, top, peaks), tl.where(order == number, total, totals)
    peak = tl.max(peaks, 0)
    shares = totals * tl.exp(peaks - peak)
    running = tl.cumsum(shares, 0)
    total = tl.sum(shares, 0)
    step = tl.load(steps + home)
    target = tl.load(noise + home * noise_width + tl.minimum(step, noise_width - 1)) * total
    reached = tl.min(tl.where((running > target) & (shares > 0.0), order, blocks), 0)
    highest = tl.min(tl.where(peaks == peak, order, blocks), 0)
    number = tl.where(greedy | (reached == blocks), highest, reached)
    # The block in which it lies, once more.
    top = tl.sum(tl.where(order == number, peaks, 0.0), 0)
    before = tl.sum(tl.where(order == number, running - shares, 0.0), 0)
    at = number * block + place
    value = tl.load(source + at, mask=at < size, other=-float("inf")).to(tl.float32) * cool
    weight = tl.exp(value - top)
    left = (target - before) / tl.exp(top - peak)
    drawn = tl.min(tl.where((tl.cumsum(weight, 0) > left) & (weight > 0.0), at, size), 0)
    drawn = tl.where(drawn == size, tl.max(tl.where(weight > 0.0, at, 0), 0), drawn)  # a rounding short of the end
    likeliest = tl.min(tl.where(value == top, at, size), 0)
    chosen = tl.minimum(tl.where(greedy | (reached == blocks), likeliest, drawn), size - 1)  # even where all are NaN
    logprob = tl.load(source + chosen).to(tl.float32) * cool - peak - tl.log(total)
    put = found + (row * burst + column) * 2
    tl.store(put, chosen.to(tl.float64))
    tl.store(put + 1, logprob.to(tl.float64))
    tl.store(last + home, chosen.to(tl.int64))
    tl.store(positions + home, tl.where(home == spare, 0, tl.load(positions + home) + 1))
    tl.store(steps + home, step + 1)


def sample(
    logits: Tensor, noise: Tensor, temperatures: Tensor, homes: Tensor, state: tuple[Tensor, Tensor, Tensor],
    found: Tensor, column: int, spare: int,
) -> None:  # fmt: skip
    """One id a row by its uniform number noise[home, step] (at temperature 0 the most likely) and its log-prob, into a
    column of [slots, burst, 2], in float64, which holds both. The row's last id, position and step, by home, go on;
    those of the `spare` home, where any number of rows may stand, stay at position 0."""
    rows, size = logits.shape
    _sample[(rows,)](
        logits, noise, temperatures, homes, *state, found, column, spare, noise.stride(0), found.shape[1], size,
        VOCABULARY, triton.next_power_of_2(triton.cdiv(size, VOCABULARY)), num_warps=8,
    )  # fmt: skip
