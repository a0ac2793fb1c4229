"""Matrix products of few rows and few columns in narrow tiles, where they are faster than cuBLAS and give its bits.

cuBLAS may not split a sum over several programs (`models/loader.py: set_batch_invariant_matmul`): a row must be the
same in any batch, and the learner's the same as the engine's. With few rows and columns it then runs few programs: the
down-projection of a 1.5 B model at 64 rows takes 0.2 ms, and its weights could be read in 7 µs. Narrow tiles are more
programs. Their sums run in cuBLAS's order, one block of terms after the other, so the learner needs no change.

Whether that is so is not taken for granted: `ProductChoices` compares the bits and the times on the device when a shape
is first used, before it is captured, and keeps to cuBLAS unless a kernel gives the same bits in less time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.fused_matmul import accumulate_terms, program_tile
from practicum.kernels.packed_forward import linear
from practicum.models.decoder import FusedLinear

Tile = tuple[int, int, int, int]
"""Rows, columns, terms and pipeline stages of a program."""
TILES_BY_MAX_ROWS: dict[int, tuple[Tile, ...]] = {
    16: ((16, 16, 128, 5), (16, 32, 128, 4)),
    32: ((32, 16, 128, 5), (32, 32, 128, 4)),
    128: ((64, 16, 128, 5), (64, 32, 128, 4)),
}
"""The tiles that are tried, by the most rows that they are tried for."""
MAX_COLUMNS = 4096
"""With more columns cuBLAS has programs enough."""
NUM_CHECKS, NUM_REPLAYS = 3, 5
MIN_GAIN = 0.95
"""Share of cuBLAS's time below which a kernel is chosen."""


@triton.jit
def _narrow_matmul(
    x, weight, out, rows, width, size: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
    block_k: tl.constexpr, stages: tl.constexpr, exact: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside, source, weights = program_tile(x, weight, rows, size, block_m, block_n, block_k)
    acc = tl.zeros((block_m, block_n), tl.float32)
    for start in tl.range(0, size, block_k, num_stages=stages):
        acc = accumulate_terms(acc, tl.load(source + start, mask=inside, other=0.0), tl.load(weights + start), exact)
    tl.store(out + row[:, None] * width + column[None, :], acc.to(out.dtype.element_ty), mask=inside)


def narrow_matmul(x: Tensor, weight: Tensor, tile: Tile) -> Tensor:
    """x [W, E] times weight [O, E] transposed, in tiles of few columns; a tile must divide E and O."""
    (rows, size), width = x.shape, weight.shape[0]
    out = x.new_empty(rows, width)
    grid = (width // tile[1], triton.cdiv(rows, tile[0]))
    _narrow_matmul[grid](x, weight, out, rows, width, size, *tile, x.dtype == torch.float32, num_warps=4)
    return out


def candidate_tiles(rows: int, size: int, width: int) -> tuple[Tile, ...]:
    """The tiles that a product of this many rows, terms and columns could use."""
    if width > MAX_COLUMNS:
        return ()
    tiles = next((tiles for most, tiles in TILES_BY_MAX_ROWS.items() if rows <= most), ())
    return tuple(tile for tile in tiles if size % tile[2] == 0 and width % tile[1] == 0)


class ProductChoices:
    """Which kernel computes a product of a decode step, by rows, terms and columns."""

    def __init__(self) -> None:
        self.tiles: dict[tuple[int, int, int], Tile | None] = {}
        """The tile of each product that was measured; None: cuBLAS."""
        self.microseconds: dict[tuple[int, int, int], dict[str, float]] = {}
        """The times that were measured, and -1 for a tile whose bits are not cuBLAS's."""

    def linear(self, fused: FusedLinear, x: Tensor, like: Sequence[FusedLinear]) -> Tensor:
        """All outputs of `fused` [W, out] for x [W, E]; `like`: the same products of all layers, to measure with.

        The first call for a shape measures: it must not be captured, and be on a stream that can be.
        """
        with_adapters = fused.adapters is not None and fused.adapters.in_use
        if fused.weight is None or fused.bias is not None or with_adapters or not x.is_cuda or x.dtype.itemsize != 2:
            return linear(fused, x)
        key = (x.shape[0], x.shape[1], fused.weight.shape[0])
        if key not in self.tiles:
            self.tiles[key] = self._choose(key, [one.weight for one in like if one.weight is not None])
        tile = self.tiles[key]
        return linear(fused, x) if tile is None else narrow_matmul(x, fused.weight, tile)

    def _choose(self, key: tuple[int, int, int], weights: Sequence[Tensor]) -> Tile | None:
        """The fastest kernel whose bits are those of cuBLAS."""
        tiles = candidate_tiles(*key)
        if not tiles or torch.cuda.is_current_stream_capturing():
            return None
        device, dtype = weights[0].device, weights[0].dtype
        generator = torch.Generator(device).manual_seed(0)  # the trainer's random numbers stay what they are
        inputs = [torch.randn(key[:2], device=device, generator=generator).to(dtype) for _ in range(NUM_CHECKS)]
        times = {"cuBLAS": _microseconds(F.linear, inputs[0], weights)}
        best, fastest = None, MIN_GAIN * times["cuBLAS"]
        for tile in tiles:
            pairs = zip(inputs, weights, strict=False)
            if not all(torch.equal(narrow_matmul(x, weight, tile), F.linear(x, weight)) for x, weight in pairs):
                times[str(tile)] = -1.0
                continue
            times[str(tile)] = _microseconds(functools.partial(narrow_matmul, tile=tile), inputs[0], weights)
            if times[str(tile)] < fastest:
                best, fastest = tile, times[str(tile)]
        self.microseconds[key] = times
        return best


def _microseconds(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weights: Sequence[Tensor]) -> float:
    """The time of one product in a graph, over the weights of all layers so that none stays in the GPU's cache."""
    for weight in weights[:2]:  # built, with their workspaces, before the capture
        product(x, weight)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for weight in weights:
            product(x, weight)
    finally:
        graph.capture_end()
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    graph.replay()
    start_event.record()
    for _ in range(NUM_REPLAYS):
        graph.replay()
    end_event.record()
    end_event.synchronize()
    return float(start_event.elapsed_time(end_event)) * 1000 / (NUM_REPLAYS * len(weights))
