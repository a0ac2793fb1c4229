"""Decoding on a CUDA GPU: a step is captured once for each size of batch and then replayed.

The host says how many rows there are and how many steps to take, and hears of a burst while the next one runs. A row
that ends within a burst runs on unheard until then. Prompts go through packed, without padding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.engines import sampling
from practicum.engines.row import Heard, Row
from practicum.kernels import decoding, prompts
from practicum.kernels.layers import add_norm, gate, turn_
from practicum.kernels.passing import product, prompt_pass

if TYPE_CHECKING:
    from practicum.engines.local import LocalEngine

SMALL_BUCKETS = (8, 16, 32, 64, 96, 128, 192, 256)
LARGE_BUCKET = 128


@dataclass(frozen=True)
class Flight:
    """A burst under way, and where on the host its results will stand."""

    rows: list[Row]
    ids: Tensor  # [slots, burst], pinned
    logprobs: Tensor
    landed: Any


class CudaSteps:
    """Decode steps over an engine's buffers."""

    def __init__(self, engine: LocalEngine, burst: int) -> None:
        self.engine, self.burst = engine, burst
        slots, device = engine.max_batch, engine.decoder.device
        self._ids = torch.zeros(slots, burst, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(slots, burst, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._homes = torch.arange(slots, device=device)
        self._graphs: dict[tuple[int, bool, bool], Any] = {}
        self._pool: Any = None
        self._flights: deque[Flight] = deque()
        pinned = device.type == "cuda"
        self._landing = [
            (
                torch.zeros(slots, burst, dtype=torch.int64, pin_memory=pinned),
                torch.zeros(slots, burst, pin_memory=pinned),
            )
            for _ in range(3)
        ]
        """Bursts are heard in order and at most two are under way: a buffer is free again when its turn comes."""
        self._launched = 0

    def bucket(self, rows: int) -> int:
        """The size of batch that a number of rows is decoded in: each is captured when it is first met."""
        fitting = next((size for size in SMALL_BUCKETS if size >= rows), -(-rows // LARGE_BUCKET) * LARGE_BUCKET)
        return min(fitting, self.engine.max_batch)

    def follow(self, moved: list[tuple[int, int]]) -> None:
        """Rows have taken the places of others, one after the other: their settings go along, in one go."""
        engine = self.engine
        came_from: dict[int, int] = {}
        for to, source in moved:
            came_from[to] = came_from.pop(source, source)
        places = self._there([list(came_from), list(came_from.values())])
        for tensor in engine._slot_tensors():
            tensor[places[0]] = tensor[places[1]]

    def forget(self) -> None:
        """Buffers have moved: what was captured is of no use."""
        self._graphs.clear()

    @property
    def flights(self) -> int:
        return len(self._flights)

    def _there(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values).to(self._place.device, non_blocking=True)

    def launch(self, rows: list[Row], wide: int, filtered: bool, dressed: bool) -> None:
        """Start a burst of steps for rows 0..wide-1, of which `rows` are somebody's."""
        key = (wide, filtered, dressed)
        self._homes[:wide] = self._there(self.engine._homes[:wide])
        if key not in self._graphs:
            self._capture(key)
        self._place.zero_()
        graph = self._graphs[key]
        for _ in range(self.burst):
            graph.replay()
        ids, logprobs = self._landing[self._launched % len(self._landing)]
        self._launched += 1
        ids[:wide].copy_(self._ids[:wide], non_blocking=True)
        logprobs[:wide].copy_(self._logprobs[:wide], non_blocking=True)
        self._flights.append(Flight(rows, ids, logprobs, mark(self._place.device)))

    def take(self) -> Heard:
        """What the oldest burst gave, once it is there."""
        flight = self._flights.popleft()
        if flight.landed is not None:
            flight.landed.synchronize()
        count = len(flight.rows)
        return flight.rows, flight.ids[:count].tolist(), flight.logprobs[:count].tolist()

    def fill(self, rows: Sequence[tuple[int, list[int], int]], dressed: bool) -> None:
        """Keys and values of prompts: (slot, ids, position of the first). Packed, at most so many tokens at once."""
        pending = [row for row in rows if row[1]]
        while pending:
            batch: list[tuple[int, list[int], int]] = []
            room = self.engine.prefill_tokens
            while pending and room:
                slot, ids, start = pending.pop(0)
                batch.append((slot, ids[:room], start))
                if len(ids) > room:
                    pending.insert(0, (slot, ids[room:], start + room))
                room -= len(batch[-1][1])
            self._fill(batch, dressed)

    def _fill(self, batch: Sequence[tuple[int, list[int], int]], dressed: bool) -> None:
        engine, shape = self.engine, self.engine.decoder.shape
        where = prompts.packed(
            [(engine._homes[slot], start, len(ids)) for slot, ids, start in batch], self._place.device
        )
        if engine.adapters is not None:
            slots = self._there([slot for slot, ids, _ in batch for _ in ids])
            engine.adapters.wear(engine._columns[slots] if dressed else None)

        def mix(number: int, joined: Tensor) -> Tensor:
            turn_(joined, where.positions, engine.decoder.tables, shape.heads + shape.kv_heads, shape.head_size)
            prompts.keep(joined, engine._kv[number], where, shape.heads)
            last = number == shape.layers - 1
            return joined if last else prompts.attend(joined, engine._kv[number], where, shape.heads)

        prompt_pass(engine.decoder, self._there([token for _, ids, _ in batch for token in ids]), mix)

    def _capture(self, key: tuple[int, bool, bool]) -> None:
        """Capturing runs nothing, but the kernels must have been built: by a step whose traces are wiped out."""
        engine, wide = self.engine, key[0]
        kept = [tensor[:wide].clone() for tensor in (engine._last, engine._position, engine._step)]
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._place.zero_()
            self._step(*key)
        torch.cuda.current_stream().wait_stream(side)
        for tensor, before in zip((engine._last, engine._position, engine._step), kept, strict=True):
            tensor[:wide] = before
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(*key)
        self._graphs[key] = graph

    @torch.inference_mode()
    def _step(self, wide: int, filtered: bool, dressed: bool) -> None:
        """Feed the last token of every row and sample the next."""
        engine, decoder = self.engine, self.engine.decoder
        if engine.adapters is not None:
            engine.adapters.wear(engine._columns[:wide] if dressed else None)
        positions, homes = engine._position[:wide].clamp(max=decoder.shape.context - 1), self._homes[:wide]

        epsilon, tables = decoder.epsilon, decoder.tables
        x = F.embedding(engine._last[:wide], decoder.model.model.embed_tokens.weight)
        added: Tensor | None = None
        for number, layer in enumerate(decoder.layers):
            kv = engine._kv[number]
            joined = product(layer.qkv, add_norm(x, added, layer.before_attention, epsilon, x))
            norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
            query = decoding.turn_and_keep(joined, kv, homes, positions, tables, decoder.shape.heads, norms, epsilon)
            added = product(layer.out, decoding.attend(query, kv, homes, positions))
            joined = product(layer.gate_up, add_norm(x, added, layer.before_mlp, epsilon, x))
            added = product(layer.down, gate(joined))
        logits = decoder.logits(add_norm(x, added, decoder.final_norm, epsilon, x))
        steps = engine._step[:wide]
        if filtered:
            noise = engine._noise[engine._slot_numbers[:wide], steps.clamp(max=engine._noise.shape[1] - 1)]
            limits = (engine._top_k[:wide], engine._top_p[:wide])
            ids, logprobs = sampling.sample(logits, noise, engine._temperature[:wide], *limits)
        else:
            ids, logprobs = decoding.sample(logits, engine._noise, engine._temperature[:wide], steps)
        engine._last[:wide] = ids
        engine._position[:wide] += 1
        engine._step[:wide] += 1
        self._ids[:wide].index_copy_(1, self._place, ids[:, None])
        self._logprobs[:wide].index_copy_(1, self._place, logprobs[:, None])
        self._place += 1


def mark(device: torch.device) -> Any:
    """What can be waited for: that all asked for so far is done."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
