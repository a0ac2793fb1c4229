"""Where the time of decode steps and prompts goes, by Qwen2.5 shape and batch, with variants of the kernels.

    python benchmarks/gpu_decode.py --out FILE.json [--seconds 90]

First the attention kernels alone, over all layers in one graph: warps and pipeline stages, pages as the KV cache has
them (a page holds all layers), the same with the pages of a layer side by side, and both in order and shuffled. Every
variant must give the same bits. Then the engine: milliseconds per decode step and seconds of prompts, by the number of
prompt tokens that are computed at once. The file is complete after every line.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_legs import needs
from gpu_legs.clock import Clock

needs.prepare()
import torch
from gpu_legs.common import Size, forget_peak, make_renderer, make_wide_model
from gpu_session import SHAPES

from practicum.kernels import decode_attention, prefill_attention
from practicum.kernels.paged_kv import OFFSET_UNIT, PAGE_TOKENS, LayerPages

CELLS = {"Qwen2.5-7B": (256, 1000, 256), "Qwen2.5-3B": (1024, 200, 128), "Qwen2.5-0.5B": (256, 200, 128)}
"""Requests, prompt and new tokens of the cells that became slower with pages."""
DECODE_VARIANTS = ((2, 2), (2, 3), (2, 4), (4, 2), (4, 3), (4, 4), (1, 3), (8, 3))
PREFILL_VARIANTS = ((4, 2), (4, 3), (4, 4), (8, 2), (8, 3))
LAYOUTS = ("page-major", "layer-major")
NUM_REPEATS = 7


def make_pages(shape: dict[str, Any], rows: int, tokens: int, layout: str, shuffled: bool) -> list[LayerPages]:
    """Random keys and values of all layers."""
    layers, kv_heads = shape["num_hidden_layers"], shape["num_key_value_heads"]
    size = shape["hidden_size"] // shape["num_attention_heads"]
    per_row = -(-tokens // PAGE_TOKENS)
    count = rows * per_row + 1
    page = (2, kv_heads, PAGE_TOKENS, size)
    by_page = layout == "page-major"
    dims = (count, layers, *page) if by_page else (layers, count, *page)
    memory = torch.empty(dims, dtype=torch.bfloat16, device="cuda").normal_()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(count - 1, generator=generator) if shuffled else torch.arange(count - 1)
    stride = memory.stride(0 if by_page else 1)
    table = ((order + 1) * stride // OFFSET_UNIT).view(rows, per_row).cuda()
    first = (memory[0, layer] if by_page else memory[layer, 0] for layer in range(layers))
    return [LayerPages(one[0], one[1], table, per_row * PAGE_TOKENS) for one in first]


def milliseconds(work: Callable[[], Any]) -> float:
    """The time of work in a captured graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(NUM_REPEATS):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(begun.elapsed_time(ended))
    return statistics.median(times)


def variants(module: Any, pairs: tuple[tuple[int, int], ...], work: Callable[[], list[torch.Tensor]]) -> dict[str, Any]:
    """Milliseconds of each number of warps and stages, and whether the bits are those of the present one."""
    present, times, expected = (module.ATTEND_WARPS, module.ATTEND_STAGES), {}, work()[0].clone()
    for warps, stages in pairs:
        module.ATTEND_WARPS, module.ATTEND_STAGES = warps, stages
        try:
            same = torch.equal(work()[0], expected)
            times[f"{warps} warps, {stages} stages"] = {"ms": milliseconds(work), "same bits": same}
        except Exception as error:
            times[f"{warps} warps, {stages} stages"] = {"error": f"{type(error).__name__}: {error}"[:300]}
    module.ATTEND_WARPS, module.ATTEND_STAGES = present
    return times


def kernels(name: str, record: Callable[[dict[str, Any]], None]) -> None:
    """Attention of a decode step in the middle of the replies, and of a pass over prompts, over all layers."""
    shape, (rows, prompt, new) = SHAPES[name], CELLS[name]
    heads, size = shape["num_attention_heads"], shape["hidden_size"] // shape["num_attention_heads"]
    query = torch.randn(rows, heads, size, device="cuda").bfloat16()
    slots, positions = torch.arange(rows, device="cuda"), torch.full((rows,), prompt + new // 2, device="cuda")
    for layout in LAYOUTS:
        for shuffled in (False, True):
            torch.cuda.empty_cache()
            layers = make_pages(shape, rows, prompt + new, layout, shuffled)

            def work(layers: list[LayerPages] = layers) -> list[torch.Tensor]:
                return [decode_attention.attend(query, kv, slots, positions) for kv in layers]

            row = {"shape": name, "cell": CELLS[name], "kernel": "decode", "layout": layout, "shuffled": shuffled}
            all_variants = layout == LAYOUTS[0] and not shuffled
            nbytes = 2 * rows * (prompt + new // 2) * shape["num_key_value_heads"] * size * 2 * len(layers)
            row["ms at 4.3 TB/s"] = nbytes / 4.3e9
            row["times"] = variants(decode_attention, DECODE_VARIANTS if all_variants else DECODE_VARIANTS[:2], work)
            record(row)
            if all_variants:
                times = prefill_times(shape, layers[:4], prompt)
                record({"shape": name, "cell": CELLS[name], "kernel": "prefill of 4 layers", "times": times})
            del layers, work


def prefill_times(shape: dict[str, Any], layers: list[LayerPages], prompt: int) -> dict[str, Any]:
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    prompts = [(slot, list(range(prompt)), 0) for slot in range(min(32768 // prompt, len(layers[0].table)))]
    numbers, *sizes = prefill_attention.pack(prompts)
    packed = prefill_attention.unpack(numbers.cuda(), *sizes)
    width = (heads + 2 * kv_heads) * layers[0].head_size
    joined = torch.randn(len(packed.ids), width, device="cuda").bfloat16()
    return variants(
        prefill_attention,
        PREFILL_VARIANTS,
        lambda: [prefill_attention.attend(joined, kv, packed, heads) for kv in layers],
    )


def engine(name: str, record: Callable[[dict[str, Any]], None]) -> None:
    """The engine's own times, by the prompt tokens that are computed at once."""
    from gpu_legs import engine as engine_leg

    from practicum.engines.local.engine import LocalEngine

    batch, prompt, new = CELLS[name]
    size = replace(Size(shape=SHAPES[name]), prompt=prompt, new=new, repeats=1)
    model = make_wide_model(SHAPES[name], size)
    for prefill_tokens in (32768, 8192):
        forget_peak(size)

        def make(*arguments: Any, tokens: int = prefill_tokens, **options: Any) -> LocalEngine:
            return LocalEngine(*arguments, prefill_tokens=tokens, **options)

        before, engine_leg.LocalEngine = engine_leg.LocalEngine, make  # type: ignore[misc, assignment]
        try:
            row = engine_leg.measure(size, model, make_renderer(), batch, 1, False)
        finally:
            engine_leg.LocalEngine = before  # type: ignore[misc]
        record({"shape": name, "cell": CELLS[name], "prefill tokens": prefill_tokens, **row})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=90)
    args = parser.parse_args()
    clock, rows = Clock(args.seconds / 60), []

    def record(row: dict[str, Any]) -> None:
        rows.append(row)
        clock.say(json.dumps(row))
        args.out.write_text(json.dumps(rows, indent=1) + "\n")

    for part in (kernels, engine):
        for name in CELLS:
            if not clock.over:
                part(name, record)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
