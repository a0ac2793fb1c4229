"""Profile: where the time of a decode, an update, episodes of several turns and a whole GRPO step goes: on the GPU by
kernel, on the host by line.

Each is timed without a profiler first. The GPU's side is `torch.profiler`'s record of one further round: busy is the
time in which any kernel ran. The host's is a thread that looks every half millisecond at what all others are doing:
they are several, the engine's among them, and `cProfile` sees one.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from gpu_legs.agent import Ledger, make_engine, play
from gpu_legs.common import Row, Size, forget_peak, make_model, make_renderer, make_requests, synchronise
from gpu_legs.learner import make_samples
from gpu_legs.step import make_trainer
from practicum.engines.local.engine import LocalEngine
from practicum.models.decoder import Decoder
from practicum.training.learner import Learner, OptimizerSettings
from practicum.training.micro_batches import MicroBatchLimits
from practicum.training.objective import Objective

TOP = 12
EVERY = 0.0005
Do = Callable[[], Coroutine[Any, Any, None]]


def busy_seconds(spans: list[tuple[float, float]]) -> float:
    """The total time that intervals cover."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


async def on_gpu(size: Size, do: Do) -> Row:
    """Kernels of one round; empty without a GPU or without the permission to profile it."""
    if size.device != "cuda":
        return {}
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        started = time.perf_counter()
        await do()
        synchronise(size)
        seconds = time.perf_counter() - started
    ran = [event for event in record.events() if str(event.device_type).endswith("CUDA")]
    if not ran:
        return {"gpu": "no kernel was recorded: CUPTI is missing or not allowed here"}
    kernels: dict[str, list[float]] = defaultdict(list)
    for event in ran:
        kernels[event.name].append(event.time_range.end - event.time_range.start)
    busy = busy_seconds([(event.time_range.start, event.time_range.end) for event in ran]) / 1e6
    longest = sorted(kernels.items(), key=lambda item: -sum(item[1]))[:TOP]
    top = [
        {"kernel": name[:100], "count": len(times), "ms": sum(times) / 1000, "mean us": statistics.mean(times)}
        for name, times in longest
    ]
    return {"recorded seconds": seconds, "gpu busy": busy, "kernels": len(ran), "top": top, "idle": idle(ran)}


def idle(ran: list[Any]) -> list[Row]:
    """The longest times in which no kernel ran: when they began, and between which kernels."""
    ran = sorted(ran, key=lambda event: event.time_range.start)
    start, reached, before, rows = ran[0].time_range.start, ran[0].time_range.end, ran[0].name, list[Row]()
    for event in ran[1:]:
        if event.time_range.start > reached:
            rows.append({"at ms": (reached - start) / 1000, "ms": (event.time_range.start - reached) / 1000,
                          "after": before[:40], "before": event.name[:40]})  # fmt: skip
        if event.time_range.end > reached:
            reached, before = event.time_range.end, event.name
    longest = sorted(rows, key=lambda gap: -gap["ms"])[:TOP]
    return sorted(longest, key=lambda gap: gap["at ms"])


class Looker(threading.Thread):
    """Counts, by thread, which function is running."""

    def __init__(self) -> None:
        super().__init__(name="looker", daemon=True)
        self.seen: dict[str, Counter[str]] = defaultdict(Counter)
        self.looks, self.over = 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(EVERY):
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            self.looks += 1
            for number, frame in sys._current_frames().items():
                if number != self.ident:
                    code = frame.f_code
                    where = f"{Path(code.co_filename).parent.name}/{Path(code.co_filename).name}:{frame.f_lineno}"
                    self.seen[names.get(number, "?")][f"{code.co_qualname} ({where})"] += 1


async def on_host(do: Do, rounds: int) -> Row:
    """Milliseconds per round that each thread spent per source line, waiting included."""
    looker = Looker()
    looker.start()
    started = time.perf_counter()
    for _ in range(rounds):
        await do()
    seconds = (time.perf_counter() - started) / rounds
    looker.over.set()
    looker.join()
    each = 1000 * seconds / max(1, looker.looks)
    rows = {
        thread: [{"function": name, "ms": each * count} for name, count in counts.most_common(TOP)]
        for thread, counts in looker.seen.items()
    }
    return {"host": rows}


async def examine(size: Size, what: str, do: Do, host: bool = False) -> Row:
    for _ in range(2):  # kernels are built and graphs captured
        await do()
    times = []
    for _ in range(size.repeats):
        synchronise(size)
        started = time.perf_counter()
        await do()
        synchronise(size)
        times.append(time.perf_counter() - started)
    row: Row = {"what": what, "seconds": statistics.median(times), **await on_gpu(size, do)}
    if "gpu busy" in row:
        row["busy share"] = row["gpu busy"] / row["seconds"]
    return row | (await on_host(do, size.repeats) if host else {})


async def decoding(size: Size, batch: int, mixed: bool = False) -> Row:
    """A batch of prompts with a quarter of the usual reply length; `mixed`: three batches of mixed lengths."""
    engine = LocalEngine(Decoder(make_model(size)), make_renderer(), max_batch=batch)
    steps = max(4, size.new // 4)
    versions, count, chains = iter(range(1, 1000)), 3 * batch if mixed else batch, size.chains if mixed else 1
    requests = make_requests(size, count, chains, 0, mixed, new=steps)

    async def do() -> None:
        engine.weights_changed(next(versions))
        await asyncio.gather(*(engine.generate(one) for one in requests))

    try:
        what = f"{count} requests of mixed lengths" if mixed else f"prompts and {steps} decode steps"
        return await examine(size, f"{what}, {batch} rows", do, host=mixed)
    finally:
        await engine.close()


async def updating(size: Size) -> Row:
    learner = Learner(Decoder(make_model(size)), OptimizerSettings(), MicroBatchLimits(16384))
    samples = make_samples(size, size.chains, False)
    trained = float(sum(int(sample.mask.sum()) for sample in samples))

    async def do() -> None:
        learner.update(samples, trained, Objective(entropy_coeff=0.0, kl_loss_coef=0.0), 1e-5)

    return await examine(size, f"update of {len(samples)} samples", do)


async def stepping(size: Size, overlap: bool) -> Row:
    trainer, _ = make_trainer(size, overlap, 1000)
    numbers = iter(range(1000))

    async def do() -> None:
        await trainer.step(next(numbers))

    try:
        return await examine(size, "GRPO step, overlapped" if overlap else "GRPO step", do, host=True)
    finally:
        await trainer.policy.close()


async def conversing(size: Size) -> Row:
    engine, renderer, _ = make_engine(size)

    async def do() -> None:
        await play(size, engine, renderer, "calculator", False, Ledger())

    try:
        return await examine(size, f"{size.episodes} episodes with a calculator", do, host=True)
    finally:
        await engine.close()


def show(row: Row) -> None:
    print(f"{row['what']}: {1000 * row['seconds']:.1f} ms", end="")
    if "gpu busy" in row:
        print(
            f", GPU busy {1000 * row['gpu busy']:.1f} ms ({100 * row['busy share']:.0f} %), "
            f"{row['kernels']:,} kernels and copies (recorded in {1000 * row['recorded seconds']:.1f} ms)", end="",
        )  # fmt: skip
    print(f"  {row['gpu']}" if "gpu" in row else "")
    for one in row.get("top", []):
        print(f"  {one['ms']:>8.2f} ms  {one['count']:>6} x {one['mean us']:>7.1f} us  {one['kernel']}")
    for gap in row.get("idle", []):
        print(f"  idle for {gap['ms']:>7.2f} ms from {gap['at ms']:>7.1f} on, {gap['after']} -> {gap['before']}")
    for thread, functions in row.get("host", {}).items():
        print(f"  {thread}:")
        for one in functions:
            print(f"    {one['ms']:>8.2f} ms  {one['function']}")
    sys.stdout.flush()


def leg(size: Size) -> list[Row]:
    rows: list[Row] = []
    batches = size.batches if size.tiny else tuple(batch for batch in size.batches if batch >= 256)
    measurements: list[Coroutine[Any, Any, Row]] = [decoding(size, batch) for batch in batches]
    measurements += [decoding(size, batches[0], True), updating(size), conversing(size)]
    measurements += [stepping(size, False), stepping(size, True)]
    for index, one in enumerate(measurements):
        forget_peak(size)
        try:
            rows.append(asyncio.run(one))
            show(rows[-1])
        except Exception as error:  # the others are still wanted
            traceback.print_exc()
            print(f"profile, part {index}: {type(error).__name__}: {error}", flush=True)
            if size.tiny:
                raise
    return rows
