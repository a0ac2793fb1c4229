"""Decoding on a CUDA GPU: a step is captured once for each size of batch and then replayed.

The host says how many rows there are and how many steps to take, and looks again when the burst is over; nothing in
between waits for it. A row that ends within a burst runs on unheard until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.engines import cuda_kernels, sampling
from practicum.models.decoder import Fused

if TYPE_CHECKING:
    from practicum.engines.local import LocalEngine

SMALL_BUCKETS = (8, 16, 32, 64, 96, 128, 192, 256)
LARGE_BUCKET = 128


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
        self._cos, self._sin = engine.decoder.rotary_tables(torch.float32)

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
        places = torch.tensor([list(came_from), list(came_from.values())], device=self._place.device)
        for tensor in engine._slot_tensors():
            tensor[places[0]] = tensor[places[1]]

    def forget(self) -> None:
        """Buffers have moved: what was captured is of no use."""
        self._graphs.clear()

    def run(self, wide: int, filtered: bool, dressed: bool) -> tuple[list[list[int]], list[list[float]]]:
        """A burst of steps for rows 0..wide-1: ids and log-probs of each, on the host."""
        key = (wide, filtered, dressed)
        self._homes[:wide] = torch.tensor(self.engine._homes[:wide], device=self._homes.device)
        if key not in self._graphs:
            self._capture(key)
        self._place.zero_()
        graph = self._graphs[key]
        for _ in range(self.burst):
            graph.replay()
        return self._ids[:wide].tolist(), self._logprobs[:wide].tolist()

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

        epsilon, tables = decoder.epsilon, (self._cos, self._sin)
        x = F.embedding(engine._last[:wide], decoder.model.model.embed_tokens.weight)
        added: Tensor | None = None
        for number, layer in enumerate(decoder.layers):
            kv = engine._kv[number]
            joined = product(layer.qkv, cuda_kernels.add_norm(x, added, layer.before_attention, epsilon))
            norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
            query = cuda_kernels.turn_and_keep(
                joined, kv, homes, positions, tables, decoder.shape.heads, norms, epsilon
            )
            added = product(layer.out, cuda_kernels.attend(query, kv, homes, positions))
            joined = product(layer.gate_up, cuda_kernels.add_norm(x, added, layer.before_mlp, epsilon))
            added = product(layer.down, cuda_kernels.gate(joined))
        logits = decoder.logits(cuda_kernels.add_norm(x, added, decoder.final_norm, epsilon))
        steps = engine._step[:wide]
        if filtered:
            noise = engine._noise[engine._slot_numbers[:wide], steps.clamp(max=engine._noise.shape[1] - 1)]
            limits = (engine._top_k[:wide], engine._top_p[:wide])
            ids, logprobs = sampling.sample(logits, noise, engine._temperature[:wide], *limits)
        else:
            ids, logprobs = cuda_kernels.sample(logits, engine._noise, engine._temperature[:wide], steps)
        engine._last[:wide] = ids
        engine._position[:wide] += 1
        engine._step[:wide] += 1
        self._ids[:wide].index_copy_(1, self._place, ids[:, None])
        self._logprobs[:wide].index_copy_(1, self._place, logprobs[:, None])
        self._place += 1


def product(fused: Fused, x: Tensor) -> Tensor:
    """All outputs of layers with one input, side by side."""
    joined = fused.joined(x)
    return torch.cat(fused(x), dim=-1) if joined is None else joined
