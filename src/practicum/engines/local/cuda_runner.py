"""Decoding on a CUDA GPU: a burst of steps is captured once for each size of batch and then replayed.

The host says which rows there are, and hears of a burst while the next one runs. A row that ends within a burst runs on
unheard until then. Prompts go through packed, end to end.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from practicum.engines.local import sampling
from practicum.engines.local.request import Completions, RunningRequest
from practicum.engines.local.shared_prefix import SharedPrefixGroups
from practicum.kernels import CAPTURING, decode_attention, fused_matmul, prefill_attention, slot_init
from practicum.kernels.fused_layers import add_norm, turn_
from practicum.kernels.lm_head import wide_product
from practicum.kernels.online_softmax import KEYS
from practicum.kernels.packed_forward import product, prompt_pass
from practicum.models import device as places

if TYPE_CHECKING:
    from practicum.engines.local.engine import LocalEngine

PROMPT_SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Tokens of prompts that are computed by a captured pass; longer ones keep a GPU busy enough without."""
SMALL_BUCKETS = (8, 16, 32, 64, 96, 128, 192, 256)
LARGE_BUCKET = 128
Key = tuple[int, bool, bool, bool]
"""What a burst is captured for: rows, and whether any filters what it samples, wears an adapter, or goes in a crew."""
SWITCH = 0.0002
"""Seconds for which a busy thread may keep Python's lock from one that wants it. This one gives it away whenever it
waits for the GPU; with Python's own 0.005 it gets it back later than the GPU has done a whole burst."""


@dataclass(frozen=True)
class Flight:
    """A burst under way, and where on the host its results will stand."""

    rows: list[RunningRequest]
    found: Tensor  # [slots, burst, 2] ids and log-probs, pinned
    landed: Any


class CudaRunner:
    """Decode steps over an engine's buffers."""

    def __init__(self, engine: LocalEngine, burst: int) -> None:
        self.engine: LocalEngine = weakref.proxy(engine)  # it has this: a circle would outlive both
        self.burst = burst
        sys.setswitchinterval(min(SWITCH, sys.getswitchinterval()))
        slots, device = engine.max_batch, engine.decoder.device
        if device.type == "cuda":
            places.steady_products()
        self.device = device
        self._found = torch.zeros(slots, burst, 2, dtype=torch.float64, device=device)
        """Ids and log-probs of a burst: both are exact in float64, and one copy brings them over."""
        self._homes = torch.arange(slots, device=device)
        shape = engine.decoder.shape
        together, bytes_a_number = (
            decode_attention.crew_size(shape.heads, shape.kv_heads),
            engine.decoder.dtype.itemsize,
        )
        bytes_a_key = 2 * shape.kv_heads * shape.head_size * bytes_a_number
        self._crews = SharedPrefixGroups(slots, together, KEYS, bytes_a_key, device)
        self._graphs: dict[Key, Any] = {}
        self._fillings: dict[int, tuple[Any, Tensor]] = {}
        self._pool: Any = None
        self.capturing = device.type == "cuda"
        self.stream: Any = first_in_line(device) if self.capturing else None
        self._side: Any = first_in_line(device) if self.capturing else None
        self._sent = list(range(slots))
        """The homes that the GPU knows of."""
        self._flights: deque[Flight] = deque()
        self._landing = [torch.zeros_like(self._found, device="cpu", pin_memory=self.capturing) for _ in range(3)]
        """Bursts are heard in order and at most two are under way: a buffer is free again when its turn comes."""
        self._launched = 0

    def bucket(self, rows: int) -> int:
        """The size of batch that a number of rows is decoded in: each is captured when it is first met."""
        fitting = next((size for size in SMALL_BUCKETS if size >= rows), -(-rows // LARGE_BUCKET) * LARGE_BUCKET)
        return min(fitting, self.engine.max_batch)

    def reset_graphs(self) -> None:
        """Buffers have moved: what was captured is of no use, and its pool of memory goes with the last of it."""
        if not (self._graphs or self._fillings):
            return
        if self.capturing:
            torch.cuda.current_stream().synchronize()  # nothing is dropped that still runs
        self._graphs.clear()
        self._fillings.clear()
        self._pool = None
        if self.capturing:
            torch.cuda.empty_cache()  # what a pool held is of no use to anything else until then

    @contextlib.contextmanager
    def line(self) -> Iterator[None]:
        """Around all that the engine's thread does. When it ends, nothing runs any more that buffers are needed for."""
        if not self.capturing:
            yield
            return
        with torch.cuda.stream(self.stream):
            self.catch_up()
            yield
            self.stream.synchronize()

    def catch_up(self) -> None:
        """Wait, on the GPU, for what others have written: weights, or adapters."""
        if self.capturing:
            self.stream.wait_stream(torch.cuda.default_stream(self.device))

    @property
    def flights(self) -> int:
        return len(self._flights)

    def _there(self, values: Sequence[Any]) -> Tensor:
        return torch.tensor(values).to(self.device, non_blocking=True)

    def launch(self, rows: list[RunningRequest], wide: int, filtered: bool, dressed: bool) -> None:
        """Start a burst of steps for rows 0..wide-1, of which `rows` are somebody's."""
        places = self.engine._homes
        key = (wide, filtered, dressed, self._crews.gather(rows, places.of))
        homes = places.of[: len(rows)] + [places.spare] * (wide - len(rows))  # the rest only fill up the batch
        if homes != self._sent[:wide]:
            self._homes[:wide].copy_(torch.tensor(homes), non_blocking=True)
            self._sent[:wide] = homes
        if key not in self._graphs:
            self._capture(key)
        self._graphs[key].replay()
        found = self._landing[self._launched % len(self._landing)]
        self._launched += 1
        found[:wide].copy_(self._found[:wide], non_blocking=True)
        self._flights.append(Flight(rows, found, mark(self.device)))

    def take(self, ends: Sequence[int]) -> Completions:
        """What the oldest burst gave, once it is there."""
        flight = self._flights.popleft()
        if flight.landed is not None:
            flight.landed.synchronize()
        found = flight.found[: len(flight.rows)].numpy()
        ids = found[..., 0].astype(np.int64)
        ended: list[bool] = np.isin(ids, np.array(ends, dtype=np.int64)).any(axis=1).tolist()  # type: ignore[assignment]
        return list(zip(flight.rows, ids.tolist(), found[..., 1].tolist(), ended, strict=True))

    def settle(self, rows: Sequence[RunningRequest], homes: Sequence[int], longest: int) -> None:
        """Write new rows' settings to their homes."""
        engine = self.engine
        numbers = slot_init.packed([
            slot_init.Settings(home, row.ids[-1], len(row.ids) - 1, own.top_k, own.seed, own.temperature, own.top_p)
            for home, row in zip(homes, rows, strict=True)
            for own in (row.request.sampling,)
        ])  # fmt: skip
        fields = (engine._last, engine._position, engine._temperature, engine._top_k, engine._top_p, engine._step)
        slot_init.settle(numbers.to(self.device, non_blocking=True), longest, fields, engine._noise)
        if engine.adapters is not None and engine._columns.shape[1]:
            engine._columns[self._there(homes)] = engine.adapters.columns([row.request.adapter for row in rows])

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
        engine = self.engine
        rows = [(engine._homes.of[slot], ids, start) for slot, ids, start in batch]
        total, blocks = sum(len(ids) for _, ids, _ in rows), prefill_attention.block_count(rows)
        fitting = (size for size in PROMPT_SIZES if size >= total and room(size) >= blocks)
        size = None if dressed or not self.capturing else next(fitting, None)
        numbers, tokens, blocks = prefill_attention.packed(rows, *((size, room(size)) if size else ()))
        if self.capturing:
            numbers = numbers.pin_memory()
        if size is None:
            where = prefill_attention.cut_up(numbers.to(self.device, non_blocking=True), tokens, blocks)
            if engine.adapters is not None:
                engine.adapters.wear(engine._columns[where.homes.clamp(min=0)] if dressed else None)
            self._pass_prompts(where)
            return
        if size not in self._fillings:
            self._fillings[size] = self._capture_filling(numbers.to(self.device), tokens, blocks)
        graph, static = self._fillings[size]
        static.copy_(numbers, non_blocking=True)
        graph.replay()

    def _capture_filling(self, numbers: Tensor, tokens: int, blocks: int) -> tuple[Any, Tensor]:
        where = prefill_attention.cut_up(numbers, tokens, blocks)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        if self.engine.adapters is not None:
            self.engine.adapters.wear(None)
        return self._captured(lambda: self._pass_prompts(where), lambda: self._pass_prompts(where)), numbers

    def _captured(self, do: Callable[[], None], first: Callable[[], None]) -> Any:
        """A graph of what is done, once `first` has been: its kernels must have been built.

        `torch.cuda.graph` would give all cached memory back to the system first. A wave of prompts or a number of rows
        may be new at any time, and whoever allocates next would wait for the system to hand it out again.
        """
        try:
            return self._recorded(do, first)
        except torch.cuda.OutOfMemoryError:  # while it is captured, nothing is given back for it
            torch.cuda.empty_cache()
            return self._recorded(do, first)

    def _recorded(self, do: Callable[[], None], first: Callable[[], None]) -> Any:
        graph, side, current = torch.cuda.CUDAGraph(), self._side, torch.cuda.current_stream()
        side.wait_stream(current)
        with CAPTURING, torch.cuda.stream(side):
            first()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")  # the learner may be at work
            try:
                do()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # what went wrong says more
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(side)
        return graph

    @torch.inference_mode()
    def _pass_prompts(self, where: prefill_attention.Packed) -> None:
        engine, shape = self.engine, self.engine.decoder.shape

        def mix(number: int, joined: Tensor) -> Tensor:
            turn_(joined, where.positions, engine.decoder.tables, shape.heads + shape.kv_heads, shape.head_size)
            prefill_attention.keep(joined, engine._kv[number], where, shape.heads)
            last = number == shape.layers - 1
            return joined if last else prefill_attention.attend(joined, engine._kv[number], where, shape.heads)

        prompt_pass(engine.decoder, where.ids, mix)

    def _capture(self, key: Key) -> None:
        """A burst for so many rows; the traces of the one that was taken for it are wiped out."""
        engine = self.engine
        state = (engine._last, engine._position, engine._step)
        kept = [tensor.clone() for tensor in state]
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        self._graphs[key] = self._captured(lambda: self._burst(*key), lambda: self._step(*key, 0))
        for tensor, before in zip(state, kept, strict=True):
            tensor.copy_(before)

    def _burst(self, wide: int, filtered: bool, dressed: bool, sharing: bool) -> None:
        """As one graph: every launch gives Python's lock away, and gets it back late where there are episodes."""
        for column in range(self.burst):
            self._step(wide, filtered, dressed, sharing, column)

    @torch.inference_mode()
    def _step(self, wide: int, filtered: bool, dressed: bool, sharing: bool, column: int) -> None:
        """Feed the last token of every row and sample the next."""
        engine, decoder = self.engine, self.engine.decoder
        homes, crews = self._homes[:wide], self._crews.of(wide)
        if engine.adapters is not None:
            engine.adapters.wear(engine._columns[homes] if dressed else None)
        epsilon, tables, heads = decoder.epsilon, decoder.tables, decoder.shape.heads
        embeddings = decoder.model.model.embed_tokens.weight
        x, positions = decode_attention.enter(engine._last, engine._position, homes, embeddings, decoder.shape.context)
        added: Tensor | None = None
        for number, layer in enumerate(decoder.layers):
            kv = engine._kv[number]
            normal = add_norm(x, added, layer.before_attention, epsilon, x)
            query = fused_matmul.queries(layer, normal, kv, homes, positions, tables, heads, epsilon)
            added = product(layer.out, decode_attention.attend(query, kv, homes, positions, crews, sharing))
            normal = add_norm(x, added, layer.before_mlp, epsilon, x)
            added = product(layer.down, fused_matmul.gated(layer.gate_up, normal))
        hidden = add_norm(x, added, decoder.final_norm, epsilon, x)
        head = decoder.model.lm_head
        plain = type(head) is torch.nn.Linear and head.bias is None
        logits = wide_product(hidden, head.weight) if plain else decoder.logits(hidden).float()
        if filtered:
            self._sample_filtered(logits, homes, column)
            return
        state = (engine._last, engine._position, engine._step)
        spare = engine._homes.spare
        decode_attention.sample(logits, engine._noise, engine._temperature, homes, state, self._found, column, spare)

    def _sample_filtered(self, logits: Tensor, homes: Tensor, column: int) -> None:
        """What `decoding.sample` does, among each row's most likely."""
        engine, wide, steps = self.engine, len(homes), self.engine._step[homes]
        noise = engine._noise[homes, steps.clamp(max=engine._noise.shape[1] - 1)]
        limits = (engine._top_k[homes], engine._top_p[homes])
        ids, logprobs = sampling.sample(logits, noise, engine._temperature[homes], *limits)
        engine._last.index_copy_(0, homes, ids)
        positions = torch.where(homes == engine._homes.spare, 0, engine._position[homes] + 1)
        engine._position.index_copy_(0, homes, positions)
        engine._step.index_copy_(0, homes, steps + 1)
        self._found[:wide, column, 0], self._found[:wide, column, 1] = ids, logprobs


def first_in_line(device: torch.device) -> Any:
    """A stream whose kernels go before a learner's: a step is hundreds of small ones, and each would wait for a large
    one to make room. Graphs keep the place in line of the stream they were captured on."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def room(tokens: int) -> int:
    """Blocks of queries that a captured pass over so many tokens has: rows may be short."""
    return tokens // prefill_attention.QUERIES + tokens // 16


def mark(device: torch.device) -> Any:
    """What can be waited for: that all asked for so far is done."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
