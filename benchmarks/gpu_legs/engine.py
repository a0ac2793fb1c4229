"""Engine: tokens per second by batch size, and the cost of a longer context per decode step."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from gpu_legs.common import Row, Size, forget_peak, make_model, make_renderer, make_requests, synchronise
from practicum.chat.renderer import Renderer
from practicum.engines.local.engine import LocalEngine
from practicum.models.decoder import Decoder


def measure(size: Size, model: Any, renderer: Renderer, batch: int, chains: int, mixed: bool, prompt: int = 0) -> Row:
    engine = LocalEngine(Decoder(model), renderer, max_batch=batch)
    total = batch * 6 if mixed else batch

    async def run() -> list[dict[str, float]]:
        runs = []
        for index in range(size.repeats + 1):
            engine.weights_changed(index + 1)
            requests = make_requests(size, total, chains, index, mixed, prompt)
            before = (engine.stats.decode_seconds, engine.stats.prefill_seconds, engine.stats.decode_steps)
            synchronise(size)
            started = time.perf_counter()
            replies = await asyncio.gather(*(engine.generate(one) for one in requests))
            seconds = time.perf_counter() - started
            tokens = sum(len(reply.ids) for reply in replies)
            steps = engine.stats.decode_steps - before[2]
            decode = engine.stats.decode_seconds - before[0]
            runs.append({
                "tokens/s": tokens / seconds, "seconds": seconds, "decode": decode,
                "prefill": engine.stats.prefill_seconds - before[1], "ms a step": 1000 * decode / steps,
            })  # fmt: skip
        await engine.close()
        return runs[1:]

    runs = asyncio.run(run())
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return {"batch": batch, "chains": chains, "mixed": mixed, **middle}


def leg(size: Size) -> list[Row]:
    model, renderer, rows = make_model(size), make_renderer(), []
    for batch in size.batches:
        for chains, mixed in ((1, False), (8, False), (8, True)):
            row = measure(size, model, renderer, batch, chains, mixed)
            rows.append(row)
            kind = "mixed" if mixed else "equal"
            print(
                f"batch {batch:>5}  chains {chains}  {kind}: {row['tokens/s']:>9,.0f} tokens/s"
                f"  {row['ms a step']:.2f} ms a step, prefill {row['prefill']:.3f} s of {row['seconds']:.3f}",
                flush=True,
            )
    return rows


def bandwidth() -> float:
    """Bytes per second that a large copy moves on this GPU, read and written."""
    source = torch.empty(1 << 30, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(lambda: target.copy_(source), 10)


def timed(do: Callable[[], Any], repeats: int) -> float:
    """Median seconds on the device."""
    runs = []
    for _ in range(repeats + 3):
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        do()
        ended.record()
        torch.cuda.synchronize()
        runs.append(started.elapsed_time(ended) / 1000)
    return statistics.median(runs[3:])


def step_seconds(size: Size, model: Any, renderer: Renderer, rows: int, context: int) -> float:
    """One decode step of full rows, all with `context` keys: the captured graph alone."""
    from practicum.engines.local.cuda_kv_cache import num_pages
    from practicum.engines.local.cuda_runner import CudaRunner  # needs Triton

    engine = LocalEngine(Decoder(model), renderer, max_batch=rows)
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    runner.grow(context + 64)
    cache = runner.kv_cache
    cache.pool.grow(rows * num_pages(context + 64), None)
    for slot in range(rows):
        cache.reserve(slot, context + 64)
    for chunk in cache.pool.chunks:
        chunk.normal_()
    cache.send_table()
    runner.state.position.fill_(context)
    graph = runner.capture_decode((rows, False, False, False))

    def decode() -> None:
        runner.state.position.fill_(context)
        graph.replay()

    return timed(decode, 20) / engine.settings.steps_per_decode


def context_leg(size: Size) -> list[Row]:
    """64 sequences at growing contexts: a step should grow by the time its further keys and values take to be read."""
    if size.device != "cuda":
        print("only a GPU has captured steps to time", flush=True)
        return []
    model, renderer, rows = make_model(size), make_renderer(), list[Row]()
    shape, speed, count = size.shape, bandwidth(), 64
    head = shape["hidden_size"] // shape["num_attention_heads"]
    token = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * head * size.dtype.itemsize
    for context in size.contexts:
        forget_peak(size)
        seconds, read = step_seconds(size, model, renderer, count, context), token * count * (context + 3)
        first = rows[0] if rows else {"seconds": seconds, "KV bytes": read}
        expected = first["seconds"] + (read - first["KV bytes"]) / speed
        rows.append({
            "context": context, "rows": count, "seconds": seconds, "KV bytes": read, "copy bytes/s": speed,
            "against the first and the bytes": seconds / expected,
        })  # fmt: skip
        print(
            f"context {context:>5}: {1000 * seconds:.2f} ms a step, {read / 1e9:.2f} GB of keys and values; "
            f"{seconds / expected:.2f} of what the first and {speed / 1e12:.1f} TB/s would give",
            flush=True,
        )
    return rows
