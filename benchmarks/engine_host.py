"""The host's work of an engine on a GPU, measured without one.

    python benchmarks/engine_host.py [--cases 256x1,1024x8,256x8m] [--repeats 5] [--profile] [--out FILE.json]

The engine runs with its CUDA runner, but kernels are replaced by a clock: a decode step and a prompt take the time that
they take an H200 with a model of SmolLM2-135M's shape, the host waits for them as it waits for a GPU, and the tokens
are zeros. What is left of the time of the clock beyond that of the kernels is what the GPU waits for the host.
A case is REQUESTSxSAMPLES of one prompt, `m`: six times as many requests of mixed lengths.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gc
import json
import pstats
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from gpu_legs.common import SMALL, Size, make_model, make_renderer, make_requests

from practicum.engines.local import cuda_kv_cache, cuda_runner
from practicum.engines.local.cuda_runner import CudaRunner, GraphKey
from practicum.engines.local.engine import GPU_STEPS_PER_DECODE, LocalEngine
from practicum.engines.local.runner import RunnerSettings
from practicum.models.decoder import Decoder

STEP_SECONDS = ((64, 0.00095), (256, 0.0013), (1024, 0.0026))
"""Seconds of a decode step by rows; between them it is interpolated."""
PROMPT_TOKENS_PER_SECOND = 1.5e6
PAGES_PER_CHUNK = 173
CASES = "256x1,256x8,1024x1,1024x8,256x8m"


class SimulatedGpu:
    """Work that runs in the order in which it was started, each piece for a given time."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.reset()

    def reset(self) -> None:
        self.busy, self.first = 0.0, float("inf")

    def launch(self, seconds: float) -> None:
        now = time.perf_counter()
        self.first = min(self.first, now)
        self.free_at = max(self.free_at, now) + seconds
        self.busy += seconds


class SimulatedEvent:
    """What `torch.cuda.Event` is on a GPU."""

    def __init__(self, done_at: float) -> None:
        self.done_at = done_at

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.done_at - time.perf_counter()))


def step_seconds(num_rows: int) -> float:
    """Seconds of a decode step."""
    for (rows, seconds), (next_rows, next_seconds) in pairwise(STEP_SECONDS):
        if num_rows <= next_rows:
            return seconds + (next_seconds - seconds) * max(0, num_rows - rows) / (next_rows - rows)
    return STEP_SECONDS[-1][1]


class HostRunner(CudaRunner):
    """A `CudaRunner` whose kernels take their time and compute nothing."""

    gpu = SimulatedGpu()

    def _decode_steps(self, *key: *GraphKey) -> None:
        self.gpu.launch(self.settings.steps_per_decode * step_seconds(key[0]))

    def _prefill_forward(self, packed: Any) -> None:
        self.gpu.launch(len(packed.ids) / PROMPT_TOKENS_PER_SECOND)


@contextlib.contextmanager
def simulated(gpu: SimulatedGpu) -> Iterator[None]:
    """No kernel runs, and events are those of the simulated GPU."""
    chunk_bytes, copy_pages = cuda_kv_cache.CHUNK_BYTES, cuda_kv_cache.PagePool.copy_pages
    init_slots, record = cuda_runner.slot_init.init_slots, cuda_runner.record_event
    cuda_kv_cache.CHUNK_BYTES = PAGES_PER_CHUNK * 2 * 2 * 2 * 64 * 16 * 4
    cuda_kv_cache.PagePool.copy_pages = lambda *args: gpu.launch(1e-5 + 0.7e-6 * len(args[2]))  # type: ignore[method-assign]
    cuda_runner.slot_init.init_slots = lambda *_: gpu.launch(5e-6)
    cuda_runner.record_event = lambda _: SimulatedEvent(gpu.free_at)
    try:
        yield
    finally:
        cuda_kv_cache.CHUNK_BYTES, cuda_kv_cache.PagePool.copy_pages = chunk_bytes, copy_pages  # type: ignore[method-assign]
        cuda_runner.slot_init.init_slots, cuda_runner.record_event = init_slots, record


def engine_of(batch: int, gpu: SimulatedGpu) -> LocalEngine:
    def runner(decoder: Decoder, kv_cache: Any, settings: RunnerSettings) -> HostRunner:
        result = HostRunner(decoder, kv_cache, settings)
        result.gpu = gpu
        return result

    runner.kv_cache_type = cuda_kv_cache.CudaKVCache  # type: ignore[attr-defined]
    return LocalEngine(
        Decoder(make_model(Size(device="cpu", dtype=torch.float32, shape=SMALL))), make_renderer(), max_batch=batch,
        prefill_tokens=32768, steps_per_decode=GPU_STEPS_PER_DECODE, runner=runner, kv_bytes=8 << 30,
        cache_bytes=4 << 30,
    )  # fmt: skip


def measure(case: str, repeats: int, profiler: cProfile.Profile | None = None) -> dict[str, float]:
    """Medians over runs: seconds, those of the GPU, and the processor time of all threads per token."""
    mixed, gpu = case.endswith("m"), SimulatedGpu()
    batch, samples = map(int, case.rstrip("m").split("x"))
    size = Size(shape=SMALL)
    engine = engine_of(batch, gpu)

    async def run() -> list[dict[str, float]]:
        runs = []
        if profiler is not None:
            inner = engine._run

            def profiled() -> None:
                profiler.enable()
                inner()
                profiler.disable()

            engine._run = profiled
        gc.collect()
        gc.freeze()
        for index in range(repeats + 1):
            engine.weights_changed(index + 1)
            requests = make_requests(size, batch * (6 if mixed else 1), samples, index, mixed)
            gpu.reset()
            stats = engine.stats
            before = (stats.prefill_seconds, stats.decode_seconds)
            started, cpu = time.perf_counter(), time.process_time()
            replies = await asyncio.gather(*map(engine.generate, requests))
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
            tokens = sum(len(reply.ids) for reply in replies)
            runs.append({
                "tokens/s": tokens / seconds, "ms": 1e3 * seconds, "GPU ms": 1e3 * gpu.busy,
                "before ms": 1e3 * (gpu.first - started),
                "idle ms": 1e3 * (gpu.free_at - gpu.first - gpu.busy),
                "after ms": 1e3 * (started + seconds - gpu.free_at), "processor us/token": 1e6 * cpu / tokens,
                "admission ms": 1e3 * (stats.prefill_seconds - before[0]),
                "decode ms": 1e3 * (stats.decode_seconds - before[1]),
            })  # fmt: skip
        await engine.close()
        return runs[1:]

    with simulated(gpu):
        runs = asyncio.run(run())
    return {key: statistics.median(figures[key] for figures in runs) for key in runs[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print where the engine's thread spends its time")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = {}
    for case in args.cases.split(","):
        profiler = cProfile.Profile() if args.profile else None
        results[case] = measure(case, args.repeats, profiler)
        print(f"{case:>8}  " + "  ".join(f"{key} {value:,.1f}" for key, value in results[case].items()), flush=True)
        if profiler is not None:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
