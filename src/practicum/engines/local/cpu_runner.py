"""Prefill and decode on a CPU.

The slot of a request is its index in the batch: slots 0..B-1 are in use, and when a request ends, the last one is
copied into its slot. Shapes are bucketed (rows by 8, keys by 128), which makes a request's numbers independent of the
others in the batch, to the last bit. So the rows of a small model's batch are divided among threads (`RowThreads`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.engines.local.kv_cache import KEY_BUCKET, KVCache
from practicum.engines.local.paged_kv_cache import FIRST_BLOCK_KEYS, PagedKVCache, block_count, block_start
from practicum.engines.local.runner import (
    BATCH_MULTIPLE,
    DecodeOutput,
    RunnerSettings,
    RunningRequest,
    SlotState,
    any_constrained,
    any_filtered,
)
from practicum.engines.local.sampling import filtered_logits, most_likely, sample, uniforms
from practicum.engines.local.token_masks import BatchMasks, apply_masks, batch_masks
from practicum.models.decoder import Decoder
from practicum.models.multi_lora import MultiLoRA


def causal_mask(positions: Tensor, keys: int, dtype: torch.dtype, first_key: int = 0) -> Tensor:
    """0 where a query at positions [R, T] attends to a key from `first_key` on, -inf elsewhere: [R, 1, T, rest]."""
    masked = torch.arange(first_key, keys, device=positions.device) > positions[..., None]
    return torch.zeros(masked.shape, dtype=dtype, device=masked.device).masked_fill_(masked, -torch.inf)[:, None]


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scores: Tensor) -> Tensor:
    """q [R, T, H, D] over k, v [R, K, keys, D] under mask [R, 1, T, last keys] gives [R, T, H·D].

    The mask is of the last keys; all queries attend to those before them. `scores` [R·K, H/K·T, keys] is overwritten.
    It is by far the largest tensor of a pass: if each operation of each layer allocated one, the memory would go back
    to the system in between, and cost a page fault per 4 KiB every time.
    """
    rows, width, heads, size = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    group = heads // kv_heads
    grouped = (q * size**-0.5).view(rows, width, kv_heads, group, size).permute(0, 2, 3, 1, 4)
    grouped = grouped.reshape(rows * kv_heads, group * width, size)
    torch.bmm(grouped, k.flatten(0, 1).transpose(-1, -2), out=scores)
    scores.view(rows, kv_heads, group, width, keys)[..., keys - mask.shape[-1] :].add_(mask[:, :, None])
    torch.softmax(scores, -1, out=scores)
    result = _weighted_sum(scores, v.flatten(0, 1), [rows * kv_heads] * block_count(keys))
    result = result.view(rows, kv_heads, group, width, size).permute(0, 3, 1, 2, 4)
    return result.reshape(rows, width, heads * size)


def decode_attention(q: Tensor, blocks: Sequence[tuple[Tensor, Tensor]], bias: Tensor) -> Tensor:
    """One query per row: q [R, H, D] over blocks of keys and values with bias [R·K, 1, keys] gives [R, H·D].

    Block j has keys [n·K, D, keys of the block] and values [n·K, keys of the block, D] of rows 0..n-1 only; the others
    have no keys there.
    """
    rows, heads, size = q.shape
    scale, num_rows = size**-0.5, blocks[0][0].shape[0]
    grouped = q.reshape(num_rows, -1, size)
    scores = []
    for block, (keys, _) in enumerate(blocks):  # into a slice of one tensor, the products would go row by row
        count, part = keys.shape[0], slice(block_start(block), block_start(block + 1))
        block_scores = torch.baddbmm(bias[:count, :, part], grouped[:count], keys, alpha=scale)
        rest = num_rows - count
        scores.append(F.pad(block_scores, (0, 0, 0, 0, 0, rest), value=-torch.inf) if rest else block_scores)
    weights = (torch.cat(scores, -1) if len(scores) > 1 else scores[0]).softmax(-1)
    result = torch.bmm(weights[:, :, :FIRST_BLOCK_KEYS], blocks[0][1])
    for block, (_, values) in enumerate(blocks[1:], 1):
        count, part = values.shape[0], slice(block_start(block), block_start(block + 1))
        result[:count].baddbmm_(weights[:count, :, part], values)
    return result.view(rows, heads * size)


def _weighted_sum(weights: Tensor, values: Tensor, blocks: Sequence[int]) -> Tensor:
    """weights [N, T, keys] × values [N, keys, D], summed block by block (see the module's docstring)."""
    result = torch.bmm(weights[:, :, :FIRST_BLOCK_KEYS], values[:, :FIRST_BLOCK_KEYS])
    for block, count in enumerate(blocks[1:], 1):
        part = slice(block_start(block), block_start(block + 1))
        result[:count].baddbmm_(weights[:count, :, part], values[:count, part])
    return result


def record_kept(running: Sequence[RunningRequest], logits: Tensor) -> None:
    """Append the ids that each request samples among, where some are left out: those whose logit [B, V] is not -inf."""
    rows = [row for row, req in enumerate(running) if req.records_kept]
    if rows:
        row, ids = np.nonzero((logits[rows] > -torch.inf).numpy())
        sets = np.split(ids.astype(np.int32), np.cumsum(np.bincount(row, minlength=len(rows)))[:-1])
        for index, kept in zip(rows, sets, strict=True):
            running[index].kept.append(kept)


MIN_PARALLEL_PREFILL_TOKENS = 512
"""Prompt tokens above which more threads pay on a small model."""
MIN_ROWS_PER_THREAD = 64
"""Rows of a decode step that are worth a thread: with 32 rows each, two threads wait as long for Python's lock as the
division saves."""
MAX_PROMPT_PIECE_TOKENS = 512
"""Tokens of one prompt that are computed at once."""
MAX_SCORES = 1 << 21
"""Attention scores per head of prompts that are computed together, at most."""
FIRST_NOISE_TOKENS = 64
"""Random numbers per slot that there is room for at first."""


Result = TypeVar("Result")


class RowThreads:
    """The engine's thread and `count - 1` others, each with one thread for its own products.

    The products of a small model are too small to divide each of them among threads: waking them up takes longer. So
    the rows of a batch are divided instead, once per pass, and each thread computes all layers for its rows.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None

    def run(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """The results of at most `count` calls, which run at the same time; all have ended when this returns."""
        if len(calls) == 1:
            return [calls[0]()]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count - 1, "practicum-rows", torch.set_num_threads, (1,))
        others: list[Future[Result]] = [self._pool.submit(_inference, call) for call in calls[1:]]
        try:
            first = calls[0]()
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]

    @contextlib.contextmanager
    def until_exit(self) -> Iterator[None]:
        """End the threads when the block ends."""
        try:
            yield
        finally:
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None


def _inference(call: Callable[[], Result]) -> Result:
    with torch.inference_mode():
        return call()


class CpuRunner:
    """A `Runner` that computes in the engine's thread and returns each step's tokens at once."""

    asynchronous = False
    masks_adapters = False
    admission_interval = 4
    kv_cache_type: ClassVar[type[KVCache]] = PagedKVCache

    def __init__(self, decoder: Decoder, kv_cache: KVCache, settings: RunnerSettings) -> None:
        assert isinstance(kv_cache, PagedKVCache), "a CPU has pages"
        self.decoder, self.kv_cache, self.settings = decoder, kv_cache, settings
        self.adapters: MultiLoRA | None = None
        self._state = SlotState(kv_cache.num_slots + 1, FIRST_NOISE_TOKENS, decoder.device)
        self._slot_indices = torch.arange(kv_cache.num_slots)
        self._masks: BatchMasks | None = None
        self._threads = RowThreads(settings.row_threads)

    def stream(self) -> contextlib.AbstractContextManager[None]:
        return self._threads.until_exit()

    def synchronize(self) -> None:
        """Nothing is under way outside of the calls."""

    def set_adapters(self, adapters: MultiLoRA, running: Sequence[RunningRequest]) -> None:
        self.adapters = adapters

    def grow(self, num_tokens: int) -> None:
        self.kv_cache.grow(num_tokens + 2 * self.settings.steps_per_decode)

    def set_sampling_params(self, wave: Sequence[RunningRequest]) -> None:
        """One transfer per field."""
        longest = max(req.max_new_tokens for req in wave)
        self._state.reserve_noise(longest)
        state, slots = self._state, slice(wave[0].slot, wave[0].slot + len(wave))
        params = [req.request.sampling for req in wave]
        state.last_id[slots] = torch.tensor([req.ids[-1] for req in wave])
        state.position[slots] = torch.tensor([len(req.ids) - 1 for req in wave])
        state.temperature[slots] = torch.tensor([p.temperature for p in params])
        state.top_k[slots] = torch.tensor([p.top_k for p in params])
        state.top_p[slots] = torch.tensor([p.top_p for p in params])
        state.min_p[slots] = torch.tensor([p.min_p for p in params])
        state.step[slots] = 0
        state.noise[slots, :longest] = uniforms([p.seed for p in params], longest)

    def prefill(self, wave: Sequence[RunningRequest]) -> None:
        """Prompts of like length are computed together, padded; groups at the same time where there are threads."""
        pending = [(req, req.num_cached) for req in wave if req.num_cached < req.prompt_end]
        pending.sort(key=lambda item: item[0].prompt_end - item[1])
        while pending:
            num_tokens = sum(req.prompt_end - start for req, start in pending)
            num_groups = self._threads.count if num_tokens > MIN_PARALLEL_PREFILL_TOKENS else 1
            groups = self._prefill_groups(pending, num_groups)
            if len(groups) == 1 and num_tokens > MIN_PARALLEL_PREFILL_TOKENS:
                torch.set_num_threads(self.settings.prefill_threads)
            passes = [self._prefill_pass(group) for group in groups]
            self._threads.run(passes)
            torch.set_num_threads(self.settings.decode_threads)
            computed = {req: start + width for group, width in groups for req, start in group}
            pending = [(req, computed.get(req, start)) for req, start in pending]
            pending = [(req, start) for req, start in pending if start < req.prompt_end]

    def _prefill_groups(
        self, pending: Sequence[tuple[RunningRequest, int]], count: int
    ) -> list[tuple[list[tuple[RunningRequest, int]], int]]:
        """At most `count` groups of prompts, with the number of tokens of each prompt that are computed next.

        A group has at most `prefill_tokens` tokens, and at most `MAX_SCORES` scores per head, which bounds its memory.
        """
        widths = [min(req.prompt_end - start, MAX_PROMPT_PIECE_TOKENS) for req, start in pending]
        num_tokens = sum(-(-width // BATCH_MULTIPLE) * BATCH_MULTIPLE for width in widths)
        equal_part = max(-(-num_tokens // count), MIN_PARALLEL_PREFILL_TOKENS // 2)
        groups: list[tuple[list[tuple[RunningRequest, int]], int]] = []
        group: list[tuple[RunningRequest, int]] = []
        widest = longest = 0
        for (req, start), width in zip(pending, widths, strict=True):
            limit = self.settings.prefill_tokens if len(groups) == count - 1 else equal_part
            keys, rows = max(longest, start + width), len(group) + 1
            if group and (max(widest, width) * rows > limit or max(widest, width) * rows * keys > MAX_SCORES):
                groups.append((group, widest))
                group, widest, longest = [], 0, 0
                if len(groups) == count:
                    return groups
            group.append((req, start))
            widest, longest = max(widest, width), max(longest, start + width)
        return [*groups, (group, widest)]

    def decode(self, running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
        count, num_steps = len(running), self.settings.steps_per_decode
        num_rows = -(-count // BATCH_MULTIPLE) * BATCH_MULTIPLE
        self._state.position[count:num_rows] = 0  # rows that only pad the batch start over each time
        self._state.step[count:num_rows] = 0
        rows_per_block = self._sort_by_length(running)
        self.kv_cache.reserve_pages(0, num_rows)  # also for rows that only pad the batch
        filtered = any_filtered(running)
        masks = self._batch_masks(running)
        steps: list[tuple[Tensor, Tensor]] = []
        for _ in range(num_steps):
            if masks is not None:
                masks.start(running)
            steps.append(self._decode_step(running, num_rows, rows_per_block, filtered, masks))
            if masks is not None:
                masks.append(running, steps[-1][0].tolist())
        ids = torch.stack([step for step, _ in steps], 1).tolist()
        logprobs = torch.stack([step for _, step in steps], 1).tolist()
        ends = frozenset(end_ids)
        may_end = [not ends.isdisjoint(new) for new in ids[:count]]
        return DecodeOutput(num_steps, list(zip(running, ids, logprobs, may_end, strict=False)))

    def _batch_masks(self, running: Sequence[RunningRequest]) -> BatchMasks | None:
        """The masks of the batch, where any request has one."""
        if not any_constrained(running):
            return None
        self._masks = self._masks or batch_masks(running, self.kv_cache.num_slots)
        return self._masks

    def reset(self) -> None:
        """Nothing is under way outside of the calls."""
        torch.set_num_threads(self.settings.decode_threads)

    def release(self, request: RunningRequest, last: RunningRequest) -> None:
        freed = last.slot
        self.kv_cache.release(request.slot)
        if last is not request:
            self.kv_cache.move(last.slot, request.slot)
            self._state.copy(last.slot, request.slot)
            last.slot = request.slot
        self.kv_cache.free(freed)

    def _prefill_pass(self, group: tuple[list[tuple[RunningRequest, int]], int]) -> Callable[[], None]:
        """Reserve pages for the next tokens of prompts; the function that computes them, padded to one width."""
        decoder, kv_cache = self.decoder, self.kv_cache
        members, widest = group
        rows = [(req.slot, req.ids[start : min(start + widest, req.prompt_end)], start) for req, start in members]
        width = -(-max(len(ids) for _, ids, _ in rows) // BATCH_MULTIPLE) * BATCH_MULTIPLE
        tokens = kv_cache.prompt_tokens([(slot, start, len(ids)) for slot, ids, start in rows])
        ids = torch.tensor([ids + [0] * (width - len(ids)) for _, ids, _ in rows])
        starts = torch.tensor([start for _, _, start in rows])
        positions = (starts[:, None] + torch.arange(width)).clamp(max=kv_cache.capacity - 1)
        num_keys = -(-(int(starts.max()) + width) // KEY_BUCKET) * KEY_BUCKET
        num_keys = min(num_keys, kv_cache.capacity)
        first_key = int(starts.min()) // BATCH_MULTIPLE * BATCH_MULTIPLE  # all attend to those before it
        pages = kv_cache.prompt_pages([slot for slot, _, _ in rows], num_keys)
        shape = decoder.shape
        limit, last_layer = decoder.shape.context - 1, decoder.shape.layers - 1

        def forward() -> None:
            mask = causal_mask(positions, num_keys, decoder.dtype, first_key)
            buffer = torch.zeros(2, len(rows), shape.kv_heads, num_keys, shape.head_size, dtype=decoder.dtype)
            queries = shape.heads // shape.kv_heads * width
            scores = torch.empty(len(rows) * shape.kv_heads, queries, num_keys, dtype=decoder.dtype)

            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                kv_cache.write_prompts(layer, tokens, k, v)
                if layer == last_layer:
                    return v
                return attention(q, *kv_cache.read_prompts(layer, pages, buffer), mask, scores)

            self._select_adapters([req for req, _ in members])
            decoder.hidden(ids, positions.clamp(max=limit), attend, keys_only=True)

        return forward

    def _sort_by_length(self, running: list[RunningRequest]) -> tuple[int, ...]:
        """Order rows by their blocks of keys, longest first: how many rows (0..n-1) have keys in each block."""
        blocks = [block_count(len(req.ids) + self.settings.steps_per_decode - 1) for req in running]
        order = descending_order(blocks)
        if order is not None:
            self.kv_cache.permute(order)
            self._state.permute(order)
            running[:] = [running[row] for row in order]
            for index, req in enumerate(running):
                req.index = req.slot = index
            blocks.sort(reverse=True)
        self.kv_cache.reserve_blocks(blocks)
        rows_per_block = rows_with_more(blocks)
        self.kv_cache.arrange(rows_per_block)
        return rows_per_block

    def _select_adapters(self, members: Sequence[RunningRequest]) -> None:
        """Set the adapters of the rows of this thread's next pass."""
        if self.adapters is not None:
            self.adapters.select_rows([req.adapter_key for req in members])

    @torch.inference_mode()
    def _decode_step(
        self,
        running: Sequence[RunningRequest],
        num_rows: int,
        rows_per_block: tuple[int, ...],
        filtered: bool,
        masks: BatchMasks | None,
    ) -> tuple[Tensor, Tensor]:
        """Feed the last token of rows 0..num_rows-1 and sample the next: ids and log-probs [num_rows].

        `masks` are being computed meanwhile; they are there before anything is sampled.
        """
        state = self._state
        parts = [
            functools.partial(self._logits, running, rows, (num_rows, *rows_per_block[1:]))
            for rows in row_parts(num_rows, self._threads.count)
        ]
        logits, temperature = torch.cat(self._threads.run(parts)), state.temperature[:num_rows]
        noise = state.noise[self._slot_indices[:num_rows], state.step[:num_rows].clamp(max=state.noise.shape[1] - 1)]
        if masks is not None and (restricted := masks.wait()):
            apply_masks(logits, masks.masks, restricted)
        if filtered:
            filters = (state.top_k[:num_rows], state.top_p[:num_rows], state.min_p[:num_rows])
            logits = filtered_logits(logits, temperature, *filters)
            record_kept(running, logits)
        ids, logprobs = sample(logits, noise, temperature)
        if count := max([req.request.top_logprobs for req in running], default=0):
            for req, top in zip(running, most_likely(count, logits, temperature), strict=False):
                if req.request.top_logprobs:
                    req.top_logprobs.append(top[: req.request.top_logprobs])
        state.last_id[:num_rows] = ids
        state.position[:num_rows] += 1
        state.step[:num_rows] += 1
        return ids, logprobs

    def _logits(self, running: Sequence[RunningRequest], rows: slice, spans: Sequence[int]) -> Tensor:
        """Feed the last token of some rows: the logits of the next one. `spans`: rows that have keys, per block."""
        decoder, kv_cache = self.decoder, self.kv_cache
        count, kv_heads = rows.stop - rows.start, decoder.shape.kv_heads
        part_spans = [min(span, rows.stop) - rows.start for span in spans if span > rows.start]
        num_keys = block_start(len(part_spans))
        positions = self._state.position[rows]
        if self.settings.steps_per_decode > 1:  # rows that have stopped go on to the end, but not out of the window
            positions = positions.clamp(max=decoder.shape.context - 1)
        mask = causal_mask(positions[:, None], num_keys, decoder.dtype)
        bias = mask.expand(-1, kv_heads, -1, -1).reshape(count * kv_heads, 1, num_keys)
        destinations = kv_cache.decode_destinations(positions.tolist(), rows.start)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kv_cache.write_rows(layer, destinations, k, v)
            return decode_attention(q, kv_cache.read_rows(layer, part_spans, rows.start), bias)

        self._select_adapters(running[rows])
        return decoder.logits(decoder.hidden(self._state.last_id[rows], positions, attend))


def descending_order(counts: Sequence[int]) -> list[int] | None:
    """The rows in descending order of their counts, where a row that can stay in its place does; None: all can."""
    ordered = sorted(counts, reverse=True)
    misplaced: dict[int, list[int]] = {}
    for row, count in enumerate(counts):
        if ordered[row] != count:
            misplaced.setdefault(count, []).append(row)
    if not misplaced:
        return None
    rows = {count: iter(indices) for count, indices in misplaced.items()}
    return [row if counts[row] == count else next(rows[count]) for row, count in enumerate(ordered)]


def rows_with_more(counts: Sequence[int]) -> tuple[int, ...]:
    """How many of descending counts are above 0, 1, ..."""
    rows = len(counts)
    result = []
    for limit in range(counts[0]):
        while counts[rows - 1] <= limit:
            rows -= 1
        result.append(rows)
    return tuple(result)


def row_parts(num_rows: int, num_threads: int) -> list[slice]:
    """The rows that each thread computes: multiples of `BATCH_MULTIPLE`, and enough to be worth a thread."""
    count = max(1, min(num_threads, num_rows // MIN_ROWS_PER_THREAD))
    bounds = [num_rows * part // count // BATCH_MULTIPLE * BATCH_MULTIPLE for part in range(count)]
    return [slice(start, end) for start, end in zip(bounds, [*bounds[1:], num_rows], strict=True)]
