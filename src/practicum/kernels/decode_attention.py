"""Kernels of a decode step: embedding, rotation and KV write, attention, sampling.

Every kernel takes rows [W, ..] of different lengths; none reads a length on the host, so a step can be captured once
and replayed. Sums run in a fixed order: the same inputs give the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.fused_layers import normed_halves
from practicum.kernels.kv_layout import page_arguments, page_offset, token_offset
from practicum.kernels.online_softmax import KEY_BLOCK, LOG2E, MASKED_SCORE, SEGMENT_KEYS, accumulate, dot, merge
from practicum.kernels.paged_kv import LayerPages
from practicum.kernels.shared_prefix import SharedPrefixBatch
from practicum.kernels.token_masks import allowed_tokens

TARGET_PROGRAMS = 1024
"""Programs that fill a GPU: long rows of a small batch are split until there are about as many."""
GROUP_QUERIES = 32
"""Queries of one key-value head that the rows of a shared-prefix group have together."""
ATTEND_WARPS, ATTEND_STAGES = 2, 2
"""Of the programs that attend; neither changes a bit (`benchmarks/gpu_decode.py` measures others)."""
LOGITS_PER_BLOCK = 4096
"""Logits that the sampling kernel processes at a time."""


@triton.jit
def _embed_last_ids(
    last_ids, positions, slots, table, x, row_positions, context, size: tl.constexpr, block: tl.constexpr
) -> None:
    row, column = tl.program_id(0), tl.arange(0, block)
    inside = column < size
    slot = tl.load(slots + row)
    tl.store(row_positions + row, tl.minimum(tl.load(positions + slot), context - 1))
    embedding = tl.load(table + tl.load(last_ids + slot) * size + column, mask=inside, other=0.0)
    tl.store(x + row.to(tl.int64) * size + column, embedding.to(tl.float32), mask=inside)


def embed_last_ids(
    last_ids: Tensor, positions: Tensor, slots: Tensor, table: Tensor, context: int
) -> tuple[Tensor, Tensor]:
    """Each row's last id as an embedding [W, E] in float32, and its position [W], at most the window's last."""
    rows, size = len(slots), table.shape[1]
    x = torch.empty(rows, size, dtype=torch.float32, device=table.device)
    row_positions = torch.empty_like(slots)
    _embed_last_ids[(rows,)](
        last_ids, positions, slots, table, x, row_positions, context, size, triton.next_power_of_2(size), num_warps=4
    )
    return x, row_positions


@triton.jit
def _rope_and_store(
    joined, query, keys, values, table, table_stride, slots, positions, cos, sin, query_norm, key_norm, epsilon,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, normed: tl.constexpr,
) -> None:  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    half: tl.constexpr = size // 2
    dim = tl.arange(0, half)
    position = tl.load(positions + row)
    page = page_offset(table, table_stride, tl.load(slots + row), position)
    source = joined + (row * (heads + 2 * kv_heads) + head) * size
    first, second = tl.load(source + dim), tl.load(source + half + dim)
    if head >= heads + kv_heads:
        target = values + page + token_offset(position, head - heads - kv_heads, size)
        tl.store(target + dim, first)
        tl.store(target + half + dim, second)
    else:
        if normed:
            norm = query_norm if head < heads else key_norm
            first, second = normed_halves(source, norm, epsilon, size)
        a, b = first.to(tl.float32), second.to(tl.float32)
        angle = position * size + dim
        rotated = a * tl.load(cos + angle) + b * tl.load(sin + angle)
        other = b * tl.load(cos + angle + half) + a * tl.load(sin + angle + half)
        if head < heads:
            target = query + (row * heads + head) * size
        else:
            target = keys + page + token_offset(position, head - heads, size)
        tl.store(target + dim, rotated.to(first.dtype))
        tl.store(target + half + dim, other.to(first.dtype))


def rope_and_store(
    joined: Tensor, kv: LayerPages, slots: Tensor, positions: Tensor, tables: tuple[Tensor, Tensor], heads: int,
    norms: tuple[Tensor, Tensor] | None, epsilon: float,
) -> Tensor:  # fmt: skip
    """Rotate the queries and keys of joined projections [W, (H + 2K)·D]; store keys and values in their pages.

    Returns the queries [W, H, D]. `tables`: cos and sin [context, D] in float32, the first half of sin negated.
    `norms`: weights of the head norms of queries and keys (Qwen3).
    """
    cos, sin = tables
    rows, kv_heads, size = joined.shape[0], kv.kv_heads, kv.head_size
    query = joined.new_empty(rows, heads, size)
    query_norm, key_norm = norms if norms is not None else (cos, cos)
    _rope_and_store[(rows, heads + 2 * kv_heads)](
        joined, query, *page_arguments(kv), slots, positions, cos, sin, query_norm, key_norm, epsilon, heads,
        kv_heads, size, norms is not None, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return query


@triton.jit
def _attend(
    query, keys, values, table, table_stride, slots, positions, shared_lengths, out, part_acc, part_m, part_l, scale,
    segments, heads: tl.constexpr, kv_heads: tl.constexpr, group: tl.constexpr, size: tl.constexpr, block: tl.constexpr,
    segment: tl.constexpr, parts: tl.constexpr, exact: tl.constexpr, joint: tl.constexpr,
) -> None:  # fmt: skip
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    stop = tl.load(positions + row) + 1
    member, dim, step = tl.arange(0, group), tl.arange(0, size), tl.arange(0, block)
    queries_per_key: tl.constexpr = heads // kv_heads
    inside = member < queries_per_key
    index = row * heads + head * queries_per_key + member
    q = tl.load(query + index[:, None] * size + dim[None, :], mask=inside[:, None], other=0.0)
    slot, shared = tl.load(slots + row), 0
    if joint:
        shared = tl.load(shared_lengths + row)
    tokens = token_offset(step, head, size)[:, None] + dim[None, :]
    row_m = tl.full((group,), MASKED_SCORE, tl.float32)
    row_l = tl.zeros((group,), tl.float32)
    row_acc = tl.zeros((group, size), tl.float32)
    for start in range(part * segment, stop, parts * segment):
        partial = index * segments + start // segment
        begin = start
        m = tl.full((group,), MASKED_SCORE, tl.float32)
        l = tl.zeros((group, 16), tl.float32)
        acc = tl.zeros((group, size), tl.float32)
        if joint:  # the keys that the group shares have been accumulated already
            done = inside & (start < shared)
            begin = tl.maximum(start, tl.minimum(shared, start + segment))
            m = tl.load(part_m + partial, mask=done, other=MASKED_SCORE)
            l += tl.load(part_l + partial, mask=done, other=0.0)[:, None]
            acc = tl.load(part_acc + partial[:, None] * size + dim[None, :], mask=done[:, None], other=0.0)
        for first in range(begin, tl.minimum(start + segment, stop), block):
            visible = first + step < stop
            offset = page_offset(table, table_stride, slot, first) + tokens
            key = tl.load(keys + offset, mask=visible[:, None], other=0.0)
            score = tl.where(visible[None, :], dot(q, tl.trans(key), exact) * scale, MASKED_SCORE)
            value = tl.load(values + offset, mask=visible[:, None], other=0.0)
            m, l, acc = accumulate(score, value, m, l, acc, exact)
        if parts == 1:
            row_m, row_l, row_acc = merge(row_m, row_l, row_acc, m, tl.max(l, 1), acc)
        else:
            tl.store(part_acc + partial[:, None] * size + dim[None, :], acc, mask=inside[:, None])
            tl.store(part_m + partial, m, mask=inside)
            tl.store(part_l + partial, tl.max(l, 1), mask=inside)
    if parts == 1:
        result = (row_acc / row_l[:, None]).to(out.dtype.element_ty)
        tl.store(out + index[:, None] * size + dim[None, :], result, mask=inside[:, None])


@triton.jit
def _attend_shared_prefix(
    query, keys, values, table, table_stride, members, leaders, shared_lengths, part_acc, part_m, part_l, scale,
    segments, heads: tl.constexpr, kv_heads: tl.constexpr, pad: tl.constexpr, group_rows: tl.constexpr,
    size: tl.constexpr, block: tl.constexpr, segment: tl.constexpr, parts: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    group, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    shared = tl.load(shared_lengths + group)
    if part * segment < shared:
        queries_per_key: tl.constexpr = heads // kv_heads
        member, dim, step = tl.arange(0, group_rows * pad), tl.arange(0, size), tl.arange(0, block)
        row = tl.load(members + group * group_rows + member // pad)
        inside = (member % pad < queries_per_key) & (row >= 0)
        index = row * heads + head * queries_per_key + member % pad
        q = tl.load(query + index[:, None] * size + dim[None, :], mask=inside[:, None], other=0.0)
        slot = tl.load(leaders + group)
        tokens = token_offset(step, head, size)[:, None] + dim[None, :]
        for start in range(part * segment, shared, parts * segment):
            m = tl.full((group_rows * pad,), MASKED_SCORE, tl.float32)
            l = tl.zeros((group_rows * pad, 16), tl.float32)
            acc = tl.zeros((group_rows * pad, size), tl.float32)
            for first in range(start, tl.minimum(start + segment, shared), block):
                offset = page_offset(table, table_stride, slot, first) + tokens
                score = dot(q, tl.trans(tl.load(keys + offset)), exact) * scale
                m, l, acc = accumulate(score, tl.load(values + offset), m, l, acc, exact)
            partial = index * segments + start // segment
            tl.store(part_acc + partial[:, None] * size + dim[None, :], acc, mask=inside[:, None])
            tl.store(part_m + partial, m, mask=inside)
            tl.store(part_l + partial, tl.max(l, 1), mask=inside)


@triton.jit
def _merge_segments(
    part_acc, part_m, part_l, positions, out, segments, heads: tl.constexpr, size: tl.constexpr, segment: tl.constexpr
) -> None:
    index = tl.program_id(0)
    one, dim = tl.arange(0, 1), tl.arange(0, size)
    m = tl.full((1,), MASKED_SCORE, tl.float32)
    l = tl.zeros((1,), tl.float32)
    acc = tl.zeros((1, size), tl.float32)
    for part in range(tl.cdiv(tl.load(positions + index // heads) + 1, segment)):
        partial = index * segments + part + one
        next_acc = tl.load(part_acc + partial[:, None] * size + dim[None, :])
        m, l, acc = merge(m, l, acc, tl.load(part_m + partial), tl.load(part_l + partial), next_acc)
    result = (acc / l[:, None]).to(out.dtype.element_ty)
    tl.store(out + (index + one[:, None]) * size + dim[None, :], result)


def group_size(heads: int, kv_heads: int) -> int:
    """Rows of a shared-prefix group, at most: as many as fill a matrix product."""
    return int(max(2, GROUP_QUERIES // triton.next_power_of_2(heads // kv_heads)))


def attend(
    query: Tensor,
    kv: LayerPages,
    slots: Tensor,
    positions: Tensor,
    groups: SharedPrefixBatch | None = None,
    joint: bool = False,
) -> Tensor:
    """Attention of one query per row [W, H, D] over its first positions + 1 keys: [W, H·D].

    With `joint`, keys that a group of rows shares, whole blocks of `KEY_BLOCK`, are read once for all of them, in the
    pages of one of them. That changes no bit.
    """
    rows, heads, size = query.shape
    kv_heads, segments = kv.kv_heads, triton.cdiv(kv.capacity, SEGMENT_KEYS)
    parts = _num_parts(rows * kv_heads, segments)
    out = torch.empty_like(query)
    exact = query.dtype == torch.float32
    pad = triton.next_power_of_2(heads // kv_heads)
    part_acc, part_m, part_l = out, out, out
    if parts > 1 or joint:
        part_acc = query.new_empty(rows, heads, segments, size, dtype=torch.float32)
        part_m, part_l = (query.new_empty(rows, heads, segments, dtype=torch.float32) for _ in range(2))
    common = (part_acc, part_m, part_l, size**-0.5 * LOG2E, segments, heads, kv_heads)
    joint = joint and groups is not None
    if groups is not None and joint:
        num_groups, group_rows = groups.members.shape
        group_parts = _num_parts(num_groups * kv_heads, segments)
        _attend_shared_prefix[(num_groups, kv_heads, group_parts)](
            query, *page_arguments(kv), groups.members, groups.leaders, groups.lengths, *common, pad, group_rows, size,
            KEY_BLOCK, SEGMENT_KEYS, group_parts, exact, num_warps=4, num_stages=3, enable_fp_fusion=False,
        )  # fmt: skip
    shared_lengths = positions if groups is None else groups.row_lengths
    _attend[(rows, kv_heads, parts)](
        query, *page_arguments(kv), slots, positions, shared_lengths, out, *common, max(16, pad), size, KEY_BLOCK,
        SEGMENT_KEYS, parts, exact, joint, num_warps=ATTEND_WARPS, num_stages=ATTEND_STAGES, enable_fp_fusion=False,
    )  # fmt: skip
    if parts > 1:
        _merge_segments[(rows * heads,)](
            part_acc, part_m, part_l, positions, out, segments, heads, size, SEGMENT_KEYS, num_warps=2,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out.view(rows, heads * size)


def _num_parts(programs: int, segments: int) -> int:
    """Programs among which a row's segments are divided, where there would be too few programs to fill a GPU."""
    num_splits = min(segments, max(1, TARGET_PROGRAMS // programs))
    return int(triton.next_power_of_2(num_splits)) if num_splits > 1 else 1


@triton.jit(do_not_specialize=["step"])
def _sample(
    logits, noise, temperatures, slots, last_ids, positions, sampled, results, masks, num_words, step, padding_slot,
    noise_width, num_steps, size, block: tl.constexpr, blocks: tl.constexpr, masked: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    column, order = tl.arange(0, block), tl.arange(0, blocks)
    source = logits + row.to(tl.int64) * size
    slot = tl.load(slots + row)
    temperature = tl.load(temperatures + slot)
    greedy = temperature == 0.0
    scale = 1.0 / tl.where(greedy, 1.0, temperature)
    maxima = tl.full((blocks,), -float("inf"), tl.float32)
    totals = tl.zeros((blocks,), tl.float32)
    for index in range(tl.cdiv(size, block)):
        token = index * block + column
        value = tl.load(source + token, mask=token < size, other=-float("inf")).to(tl.float32) * scale
        if masked:
            value = tl.where(allowed_tokens(masks, row, token, num_words), value, -float("inf"))
        block_max = tl.max(value, 0)
        total = tl.sum(tl.exp(value - tl.maximum(block_max, -1e30)), 0)
        maxima, totals = tl.where(order == index, block_max, maxima), tl.where(order == index, total, totals)
    row_max = tl.max(maxima, 0)
    weights = totals * tl.exp(maxima - row_max)
    cumulative = tl.cumsum(weights, 0)
    total = tl.sum(weights, 0)
    num_sampled = tl.load(sampled + slot)
    target = tl.load(noise + slot * noise_width + tl.minimum(num_sampled, noise_width - 1)) * total
    reached = tl.min(tl.where((cumulative > target) & (weights > 0.0), order, blocks), 0)
    highest = tl.min(tl.where(maxima == row_max, order, blocks), 0)
    chosen_block = tl.where(greedy | (reached == blocks), highest, reached)
    # A second pass over the block that holds the token.
    block_max = tl.sum(tl.where(order == chosen_block, maxima, 0.0), 0)
    before = tl.sum(tl.where(order == chosen_block, cumulative - weights, 0.0), 0)
    token = chosen_block * block + column
    value = tl.load(source + token, mask=token < size, other=-float("inf")).to(tl.float32) * scale
    if masked:
        value = tl.where(allowed_tokens(masks, row, token, num_words), value, -float("inf"))
    weight = tl.exp(value - block_max)
    rest = (target - before) / tl.exp(block_max - row_max)
    drawn = tl.min(tl.where((tl.cumsum(weight, 0) > rest) & (weight > 0.0), token, size), 0)
    drawn = tl.where(drawn == size, tl.max(tl.where(weight > 0.0, token, 0), 0), drawn)  # a rounding short of the end
    likeliest = tl.min(tl.where(value == block_max, token, size), 0)
    chosen = tl.minimum(tl.where(greedy | (reached == blocks), likeliest, drawn), size - 1)  # even where all are NaN
    logprob = tl.load(source + chosen).to(tl.float32) * scale - row_max - tl.log(total)
    result = results + (row * num_steps + step) * 2
    tl.store(result, chosen.to(tl.float64))
    tl.store(result + 1, logprob.to(tl.float64))
    tl.store(last_ids + slot, chosen.to(tl.int64))
    tl.store(positions + slot, tl.where(slot == padding_slot, 0, tl.load(positions + slot) + 1))
    tl.store(sampled + slot, num_sampled + 1)


def sample(
    logits: Tensor, noise: Tensor, temperatures: Tensor, slots: Tensor, state: tuple[Tensor, Tensor, Tensor],
    results: Tensor, step: int, padding_slot: int, masks: Tensor | None = None,
) -> None:  # fmt: skip
    """Sample one id per row of logits [W, V] by its uniform number noise[slot, step] (greedy at temperature 0).

    Ids and log-probs go to results[:, step] of [slots, steps, 2], in float64, which holds both exactly. `state`: the
    last id, position and number of sampled tokens by slot, which are advanced; the padding slot, which any number of
    rows may have, stays at position 0. `masks` [W, words] are the tokens that each row may sample; None: all.
    """
    rows, size = logits.shape
    _sample[(rows,)](
        logits, noise, temperatures, slots, *state, results, logits if masks is None else masks,
        0 if masks is None else masks.shape[1], step, padding_slot, noise.stride(0), results.shape[1], size,
        LOGITS_PER_BLOCK, triton.next_power_of_2(triton.cdiv(size, LOGITS_PER_BLOCK)), masks is not None, num_warps=8,
    )  # fmt: skip
