"""Where the time of decode steps and prompts goes, by Qwen2.5 shape and batch, with variants of the kernels.

    python benchmarks/gpu_decode.py --out FILE.json [--seconds 120] [--only engine,kernels] [--cells 7B,3B,0.5B]
    TRITON_INTERPRET=1 python benchmarks/gpu_decode.py --tiny --out FILE.json    on a CPU: its figures mean nothing

First the engine: tokens/s, milliseconds per decode step and seconds of prompts, medians of three runs, by the number of
prompt tokens computed at once, and the kernels of one more run by their time. Then attention alone, over all
layers in one graph: warps, pipeline stages and programs, pages as the KV cache has them, pages that hold all layers
against pages of one layer side by side, in order and shuffled. Every variant must give the same bits. The file is
complete after every line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_legs import needs
from gpu_legs.clock import Clock

needs.prepare()
import torch
from gpu_legs.common import TINY, Size, forget_peak, make_renderer, make_requests, make_wide_model
from gpu_session import SHAPES

from practicum.kernels import decode_attention, prefill_attention
from practicum.kernels.paged_kv import OFFSET_UNIT, PAGE_TOKENS, LayerPages

CELLS = {"Qwen2.5-7B": (256, 1000, 256), "Qwen2.5-3B": (1024, 200, 128), "Qwen2.5-0.5B": (256, 200, 128)}
"""Requests, prompt and new tokens of the cells that became slower with pages."""
TINY_SHAPE = SHAPES["Qwen2.5-0.5B"] | {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512,
}  # fmt: skip
DECODE_VARIANTS = (
    (2, 2, 1024), (2, 3, 1024), (4, 2, 1024), (4, 3, 1024), (4, 4, 1024), (1, 3, 1024), (2, 2, 4096), (4, 3, 4096),
)  # fmt: skip
"""Warps, pipeline stages and the number of programs among which long rows are divided."""
PREFILL_VARIANTS = ((4, 2), (4, 3), (8, 2), (8, 3))
PREFILL_TOKENS = (32768, 8192)
LAYOUTS = ("page-major", "layer-major")
NUM_REPEATS = 7
ON_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
"""Triton's interpreter does not support bfloat16."""


def make_pages(shape: dict[str, Any], rows: int, tokens: int, layout: str, shuffled: bool) -> list[LayerPages]:
    """Random keys and values of all layers."""
    layers, kv_heads = shape["num_hidden_layers"], shape["num_key_value_heads"]
    size = shape["hidden_size"] // shape["num_attention_heads"]
    per_row = -(-tokens // PAGE_TOKENS)
    count = rows * per_row + 1
    page = (2, kv_heads, PAGE_TOKENS, size)
    by_page = layout == "page-major"
    dims = (count, layers, *page) if by_page else (layers, count, *page)
    memory = torch.empty(dims, dtype=DTYPE, device=DEVICE).normal_()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(count - 1, generator=generator) if shuffled else torch.arange(count - 1)
    stride = memory.stride(0 if by_page else 1)
    table = ((order + 1) * stride // OFFSET_UNIT).view(rows, per_row).to(DEVICE)
    first = (memory[0, layer] if by_page else memory[layer, 0] for layer in range(layers))
    return [LayerPages(blocks[0], blocks[1], table, per_row * PAGE_TOKENS) for blocks in first]


def milliseconds(function: Callable[[], Any]) -> float:
    """The time of work in a captured graph."""
    function()
    if not ON_GPU:
        started = time.perf_counter()
        function()
        return 1000 * (time.perf_counter() - started)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept_outputs = function()  # outputs that are kept have places of their own, so that no write hides in the cache
    times = []
    for _ in range(NUM_REPEATS):
        started, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        started.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(started.elapsed_time(ended))
    del kept_outputs
    return statistics.median(times)


def variants(
    module: Any, settings: tuple[tuple[int, ...], ...], function: Callable[[], list[torch.Tensor]]
) -> dict[str, Any]:
    """Milliseconds of each number of warps, stages and programs, and whether the bits are those of the present ones."""
    names = ("ATTEND_WARPS", "ATTEND_STAGES", "TARGET_PROGRAMS")[: len(settings[0])]
    present, times, expected = [getattr(module, name) for name in names], {}, function()[0].clone()
    for values in settings:
        for name, value in zip(names, values, strict=True):
            setattr(module, name, value)
        words = ("warps", "stages", "programs")
        title = ", ".join(f"{value} {what}" for value, what in zip(values, words, strict=False))
        try:
            same = torch.equal(function()[0], expected)
            times[title] = {"ms": milliseconds(function), "same bits": same}
        except Exception as error:
            times[title] = {"error": f"{type(error).__name__}: {error}"[:300]}
    for name, value in zip(names, present, strict=True):
        setattr(module, name, value)
    return times


def kernels(name: str, cell: tuple[int, int, int], shape: dict[str, Any], record: Callable[..., None]) -> None:
    """Attention of a decode step in the middle of the replies, and of a pass over prompts, over all layers."""
    rows, prompt, new = cell
    heads, size = shape["num_attention_heads"], shape["hidden_size"] // shape["num_attention_heads"]
    query = torch.randn(rows, heads, size, device=DEVICE).to(DTYPE)
    slots, positions = torch.arange(rows, device=DEVICE), torch.full((rows,), prompt + new // 2, device=DEVICE)
    for shuffled in (False, True):
        for layout in LAYOUTS:
            if ON_GPU:
                torch.cuda.empty_cache()
            layers = make_pages(shape, rows, prompt + new, layout, shuffled)

            def run_layers(layers: list[LayerPages] = layers) -> list[torch.Tensor]:
                return [decode_attention.attend(query, kv, slots, positions) for kv in layers]

            all_variants = layout == LAYOUTS[0] and not shuffled
            nbytes = 2 * rows * (prompt + new // 2) * shape["num_key_value_heads"] * size * 2 * len(layers)
            times = variants(decode_attention, DECODE_VARIANTS if all_variants else DECODE_VARIANTS[:2], run_layers)
            record(kernel="decode", layout=layout, shuffled=shuffled, at_copy_speed_ms=nbytes / 4.3e9, times=times)
            if not shuffled:
                times = prefill_times(shape, layers[:4], prompt, PREFILL_VARIANTS if all_variants else ((4, 2),))
                record(kernel="prefill of 4 layers", layout=layout, times=times)
            del layers, run_layers


def prefill_times(
    shape: dict[str, Any], layers: list[LayerPages], prompt: int, settings: tuple[tuple[int, ...], ...]
) -> dict[str, Any]:
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    prompts = [(slot, list(range(prompt)), 0) for slot in range(min(32768 // prompt, len(layers[0].table)))]
    indices, *sizes = prefill_attention.pack(prompts)
    packed = prefill_attention.unpack(indices.to(DEVICE), *sizes)
    width = (heads + 2 * kv_heads) * layers[0].head_size
    joined = torch.randn(len(packed.ids), width, device=DEVICE).to(DTYPE)
    return variants(
        prefill_attention, settings, lambda: [prefill_attention.attend(joined, kv, packed, heads) for kv in layers]
    )


def engine(name: str, cell: tuple[int, int, int], shape: dict[str, Any], record: Callable[..., None]) -> None:
    """The engine's own times, by the prompt tokens that are computed at once, and its kernels."""
    from gpu_legs import engine as engine_leg
    from gpu_legs.profile import on_gpu

    from practicum.engines.local.engine import LocalEngine
    from practicum.models.decoder import Decoder

    batch, prompt, new = cell
    size = replace(Size() if ON_GPU else TINY, shape=shape, prompt=prompt, new=new, repeats=3)
    model = make_wide_model(shape, size)
    for prefill_tokens in PREFILL_TOKENS:
        forget_peak(size)

        def make(*arguments: Any, tokens: int = prefill_tokens, **options: Any) -> LocalEngine:
            return LocalEngine(*arguments, prefill_tokens=tokens, **options)

        before, engine_leg.LocalEngine = engine_leg.LocalEngine, make  # type: ignore[misc, assignment]
        try:
            record(prefill_tokens=prefill_tokens, **engine_leg.measure(size, model, make_renderer(), batch, 1, False))
        finally:
            engine_leg.LocalEngine = before  # type: ignore[misc]

    async def profiled() -> dict[str, Any]:
        engine_ = LocalEngine(Decoder(model), make_renderer(), max_batch=batch)

        async def do() -> None:
            engine_.weights_changed(engine_.stats.generated + 1)
            await asyncio.gather(*map(engine_.generate, make_requests(size, batch, 1, 0, False)))

        try:
            await do()
            return await on_gpu(size, do)
        finally:
            await engine_.close()

    forget_peak(size)
    record(profile=asyncio.run(profiled()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--only", default="engine,kernels")
    parser.add_argument("--cells", default="7B,3B,0.5B")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    clock, rows = Clock(args.seconds / 60), list[dict[str, Any]]()
    for part in args.only.split(","):
        for cell_name in args.cells.split(","):
            name = f"Qwen2.5-{cell_name}"
            cell, shape = (CELLS[name], SHAPES[name]) if not args.tiny else ((2, 66, 4), TINY_SHAPE)

            def record(part: str = part, name: str = name, cell: tuple[int, int, int] = cell, **row: Any) -> None:
                rows.append({"part": part, "shape": name, "cell": cell, **row})
                clock.say(json.dumps(rows[-1]))
                args.out.write_text(json.dumps(rows, indent=1) + "\n")

            if clock.over:
                continue
            try:
                {"kernels": kernels, "engine": engine}[part](name, cell, shape, record)
            except Exception as error:  # the other cells are still wanted
                if args.tiny:
                    raise
                traceback.print_exc()
                record(error=f"{type(error).__name__}: {error}"[:1000])
            if ON_GPU:
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
