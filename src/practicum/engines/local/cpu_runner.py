"""Decoding on CPU, step by step over an engine's buffers.

Rows stand in slots 0..B-1, which are their homes too; a finished row's place is filled by the last one. Shapes are
bucketed (rows by 8, keys by 128), which makes a row's numbers independent of the rows beside it, to the last bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from practicum.engines.local.attention import KEY_BUCKET, attention, block_count, causal_mask, decode_attention, edge
from practicum.engines.local.request import Completions, RunningRequest
from practicum.engines.local.sampling import sample, uniforms

if TYPE_CHECKING:
    from practicum.engines.local.engine import LocalEngine

ROW_BUCKET = 8
MANY_TOKENS = 512
"""Prompt tokens from which on more threads pay on a small model."""


class CpuRunner:
    """What `CudaSteps` does on a GPU."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine: LocalEngine = weakref.proxy(engine)  # it has this: a circle would outlive both
        self._slot_numbers = torch.arange(engine.max_batch)

    def settle(self, first: int, wave: Sequence[RunningRequest], longest: int) -> None:
        """Per-slot settings of new rows, one transfer a field."""
        engine, place = self.engine, slice(first, first + len(wave))
        settings = [row.request.sampling for row in wave]
        engine._last[place] = torch.tensor([row.ids[-1] for row in wave])
        engine._position[place] = torch.tensor([len(row.ids) - 1 for row in wave])
        engine._temperature[place] = torch.tensor([s.temperature for s in settings])
        engine._top_k[place] = torch.tensor([s.top_k for s in settings])
        engine._top_p[place] = torch.tensor([s.top_p for s in settings])
        engine._step[place] = 0
        if engine.adapters is not None and engine._columns.shape[1]:
            engine._columns[place] = engine.adapters.columns([row.request.adapter for row in wave])
        engine._noise[place, :longest] = uniforms([s.seed for s in settings], longest)

    def fill(self, wave: Sequence[RunningRequest]) -> None:
        """Keys and values of prompts: those of like length together, padded."""
        engine = self.engine
        pending = [(row.slot, row, row.cached) for row in wave if row.cached < len(row.ids) - 1]
        if sum(len(row.ids) - done for _, row, done in pending) > MANY_TOKENS:
            torch.set_num_threads(engine.all_threads)
        pending.sort(key=lambda item: len(item[1].ids) - item[2])
        while pending:
            group: list[tuple[int, RunningRequest, int]] = []
            widest = 0
            for item in pending:
                width = min(len(item[1].ids) - 1 - item[2], engine.prefill_tokens)
                if group and max(widest, width) * (len(group) + 1) > engine.prefill_tokens:
                    break
                group.append(item)
                widest = max(widest, width)
            pending = pending[len(group) :]
            self._wear(engine._columns[[slot for slot, _, _ in group], None], [row for _, row, _ in group])
            self._prefill([(slot, row.ids[done : done + widest], done) for slot, row, done in group])
            left = [(slot, row, done + widest) for slot, row, done in group if done + widest < len(row.ids) - 1]
            pending = left + pending
        torch.set_num_threads(engine.threads)

    def burst(self) -> Completions:
        """So many decode steps for every row."""
        engine, count = self.engine, len(self.engine._rows)
        wide = -(-count // ROW_BUCKET) * ROW_BUCKET
        engine._position[count:wide] = 0  # rows that only fill up a batch start over each time
        engine._step[count:wide] = 0
        reach = self._sort_rows()
        steps = [self._decode_step(wide, reach) for _ in range(engine.burst)]
        ids = torch.stack([step for step, _ in steps], 1).tolist()
        logprobs = torch.stack([step for _, step in steps], 1).tolist()
        return list(zip(engine._rows, ids, logprobs, [True] * count, strict=False))

    def move(self, source: int, target: int, length: int) -> None:
        """All that belongs to a slot, with so many keys, to another."""
        kv = self.engine._kv
        kv[:, :, target, :, :length] = kv[:, :, source, :, :length]
        for tensor in self._slot_tensors():
            tensor[target] = tensor[source]

    def _prefill(self, rows: list[tuple[int, list[int], int]]) -> None:
        """KV of ids from a start, for several slots at once. The last prompt token is left to decoding."""
        engine, decoder = self.engine, self.engine.decoder
        width = -(-max(len(ids) for _, ids, _ in rows) // ROW_BUCKET) * ROW_BUCKET
        slots = torch.tensor([slot for slot, _, _ in rows])
        ids = torch.tensor([ids + [0] * (width - len(ids)) for _, ids, _ in rows])
        starts = torch.tensor([start for _, _, start in rows])
        positions = (starts[:, None] + torch.arange(width)).clamp(max=engine._capacity - 1)
        keys = -(-(int(starts.max()) + width) // KEY_BUCKET) * KEY_BUCKET
        keys = min(keys, engine._capacity)
        mask = causal_mask(positions, keys, decoder.dtype)
        limit, last = decoder.shape.context - 1, decoder.shape.layers - 1

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            engine._kv[layer, 0, slots[:, None], :, positions] = k
            engine._kv[layer, 1, slots[:, None], :, positions] = v
            if layer == last:
                return v
            return attention(q, engine._kv[layer, 0, slots, :, :keys], engine._kv[layer, 1, slots, :, :keys], mask)

        decoder.hidden(ids, positions.clamp(max=limit), attend, keys_only=True)

    def _sort_rows(self) -> tuple[int, ...]:
        """Rows with more keys first, so that block j of the keys concerns rows 0..reach[j]-1 and no others."""
        engine = self.engine
        blocks = [block_count(len(row.ids) + engine.burst - 1) for row in engine._rows]
        for slot in range(1, len(blocks)):
            while blocks[slot] > blocks[slot - 1]:  # the row put out of its place may itself belong further up
                first = next(place for place, count in enumerate(blocks) if count < blocks[slot])
                self._swap(first, slot)
                blocks[first], blocks[slot] = blocks[slot], blocks[first]
        most = min(blocks[0], block_count(engine._capacity))
        return tuple(sum(count > block for count in blocks) for block in range(most))

    def _swap(self, a: int, b: int) -> None:
        kv, rows = self.engine._kv, self.engine._rows
        length = max(len(rows[a].ids), len(rows[b].ids)) - 1
        pair, turned = [a, b], [b, a]
        kv[:, :, pair, :, :length] = kv[:, :, turned, :, :length]
        for tensor in self._slot_tensors():
            tensor[pair] = tensor[turned]
        rows[a], rows[b] = rows[b], rows[a]
        rows[a].slot, rows[b].slot = a, b

    def _slot_tensors(self) -> tuple[Tensor, ...]:
        """Everything but the KV that belongs to a slot."""
        engine = self.engine
        return (
            engine._last, engine._position, engine._temperature, engine._top_k, engine._top_p, engine._step,
            engine._noise, engine._columns,
        )  # fmt: skip

    def _wear(self, columns: Tensor, rows: Sequence[RunningRequest]) -> None:
        """Set what the rows of the next pass wear; for the base alone, nothing is to be computed."""
        if self.engine.adapters is not None:
            self.engine.adapters.wear(columns if any(row.request.adapter for row in rows) else None)

    @torch.inference_mode()
    def _decode_step(self, wide: int, reach: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Feed the last token of rows 0..wide-1, sample the next."""
        engine, decoder = self.engine, self.engine.decoder
        keys = edge(len(reach))
        spans = (wide, *reach[1:])
        positions = engine._position[:wide]
        if engine.burst > 1:  # rows that stopped within a burst run on unheard, but not out of the window
            positions = positions.clamp(max=decoder.shape.context - 1)
        slots = self._slot_numbers[:wide]
        kv_heads = decoder.shape.kv_heads
        mask = causal_mask(positions[:, None], keys, decoder.dtype)
        bias = mask.expand(-1, kv_heads, -1, -1).reshape(wide * kv_heads, 1, keys)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            buffer_k, buffer_v = engine._kv[layer, 0], engine._kv[layer, 1]
            buffer_k[slots, :, positions] = k
            buffer_v[slots, :, positions] = v
            return decode_attention(q, buffer_k[:wide, :, :keys], buffer_v[:wide, :, :keys], bias, spans)

        self._wear(engine._columns[:wide], engine._rows)
        hidden = decoder.hidden(engine._last[:wide], positions, attend)
        noise = engine._noise[slots, engine._step[:wide].clamp(max=engine._noise.shape[1] - 1)]
        limits = (engine._top_k[:wide], engine._top_p[:wide]) if engine.filtered else (None, None)
        ids, logprobs = sample(decoder.logits(hidden), noise, engine._temperature[:wide], *limits)
        engine._last[:wide] = ids
        engine._position[:wide] += 1
        engine._step[:wide] += 1
        return ids, logprobs
