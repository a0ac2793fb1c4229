"""Products of few rows and long sums on a GPU: cuBLAS with and without split sums, and a kernel of narrow tiles.

    python benchmarks/gpu_matmul.py [--rows 8,16,32,64,128] [--out FILE.json]

Without splitting sums over programs (what makes a row the same in any batch, `models/loader.py`) cuBLAS is slow at 64
rows of the down-projections of Qwen2.5-0.5B and 1.5B. The kernel here does not split sums either; it has narrow tiles,
so that more programs run. Where its bits are cuBLAS's (`same bits`, against 4,096 rows) the engine alone could use it:
the learner would find the same log-probs. It has not been run on a GPU yet, and nothing in the package uses it.

Times are those of one product in a CUDA graph over the weights of 16 layers, so that no weight is in the GPU's cache.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from practicum.models import loader

SHAPES = {
    "SmolLM2-135M down": (1536, 576),
    "Qwen2.5-0.5B down": (4864, 896),
    "Qwen2.5-0.5B out": (896, 896),
    "Qwen2.5-1.5B down": (8960, 1536),
    "Qwen2.5-1.5B out": (1536, 1536),
    "Qwen2.5-1.5B gate, up": (1536, 17920),
    "Qwen2.5-3B down": (11008, 2048),
    "Qwen2.5-7B down": (18944, 3584),
}
"""Terms of a sum and columns."""
TILES = [(16, 16, 128, 5), (16, 32, 128, 4), (32, 16, 128, 5), (64, 16, 128, 5), (64, 32, 64, 5), (64, 32, 128, 4)]
"""Rows, columns, terms and pipeline stages of a program."""
LAYERS, REPEATS = 16, 20


@triton.jit
def _matmul(
    x, weight, out, rows, width, size: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
    block_k: tl.constexpr, stages: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(1) * block_m + tl.arange(0, block_m)
    column = tl.program_id(0) * block_n + tl.arange(0, block_n)
    term = tl.arange(0, block_k)
    inside = (row < rows)[:, None]
    source = x + row[:, None] * size + term[None, :]
    weights = weight + column[None, :] * size + term[:, None]
    acc = tl.zeros((block_m, block_n), tl.float32)
    for start in tl.range(0, size, block_k, num_stages=stages):
        acc = tl.dot(tl.load(source + start, mask=inside, other=0.0), tl.load(weights + start), acc)
    tl.store(out + row[:, None] * width + column[None, :], acc.to(out.dtype.element_ty), mask=inside)


def narrow_matmul(x: Tensor, weight: Tensor, tile: tuple[int, int, int, int]) -> Tensor:
    """x [W, E] times weight [O, E] transposed, in tiles of few columns."""
    (rows, size), width = x.shape, weight.shape[0]
    out = x.new_empty(rows, width)
    grid = (width // tile[1], triton.cdiv(rows, tile[0]))
    _matmul[grid](x, weight, out, rows, width, size, *tile, num_warps=4)
    return out


def microseconds(product: Any, x: Tensor, weights: list[Tensor]) -> float:
    """The time of one product, of a graph of one per layer."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        for weight in weights[:2]:
            product(x, weight)
    side.synchronize()
    with torch.cuda.graph(graph):
        for weight in weights:
            product(x, weight)
    graph.replay()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(REPEATS):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / REPEATS / len(weights) * 1e6


def measure(name: str, rows: int) -> dict[str, Any]:
    """The figures of one shape and number of rows."""
    size, width = SHAPES[name]
    torch.manual_seed(0)
    weights = [torch.randn(width, size, device="cuda").to(torch.bfloat16) * 0.02 for _ in range(LAYERS)]
    many = torch.randn(4096, size, device="cuda").to(torch.bfloat16)
    x = many[:rows].contiguous()
    loader.set_batch_invariant_matmul(False)
    split = microseconds(F.linear, x, weights)
    loader.set_batch_invariant_matmul()
    unsplit, expected = microseconds(F.linear, x, weights), F.linear(many, weights[0])[:rows]
    exact = F.linear(x.double(), weights[0].double())
    best: dict[str, Any] = {}
    for tile in TILES:
        if size % tile[2] or width % tile[1]:
            continue
        found = narrow_matmul(x, weights[0], tile)
        error = float((found.double() - exact).norm() / exact.norm())
        figures = {"tile": tile, "us": microseconds(lambda a, w, t=tile: narrow_matmul(a, w, t), x, weights),
                   "same bits": torch.equal(found, expected), "error": error}  # fmt: skip
        if not best or (figures["same bits"], -figures["us"]) > (best["same bits"], -best["us"]):
            best = figures
    return {"shape": name, "rows": rows, "split": split, "not split": unsplit, "kernel": best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="8,16,32,64,128")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = []
    for name in SHAPES:
        for rows in map(int, args.rows.split(",")):
            results.append(measure(name, rows))
            print(json.dumps(results[-1]), flush=True)
            if args.out is not None:
                args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
