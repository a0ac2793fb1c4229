"""Agents with a tool on a CPU: episodes of three turns per second, and the processor time of each part of the engine.

    python benchmarks/agent_cpu.py [--episodes 256] [--batch 128] [--repeats 3] [--out FILE.json]

`tiny` decodes every reply, token by token, as many tokens as the expert's reply has; the environment gets the expert's
reply and calls the calculator (`gpu_legs/agent.py`). The critical path is the processor time of the engine's thread and
what other threads computed beyond it while it waited for them: unlike the clock, it can be compared on a machine that
has other work, but waiting for Python's lock is not in it.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import transformers
from gpu_legs.agent import Ledger, play
from gpu_legs.common import TINY, Row

from practicum.chat.renderer import Renderer
from practicum.engines.local.cpu_runner import CpuRunner, RowThreads
from practicum.engines.local.engine import LocalEngine
from practicum.models import loader
from practicum.models.decoder import Decoder

PARTS = ((LocalEngine, "_admit"), (LocalEngine, "_decode_or_retry"), (CpuRunner, "prefill"), (CpuRunner, "decode"))


def watch(seconds: Counter[str]) -> None:
    """Add up the processor seconds of the engine's parts, in the thread that calls them."""
    for owner, name in PARTS:
        setattr(owner, name, timed(getattr(owner, name), name.strip("_"), seconds))
    run = RowThreads.run

    def timed_run(self: RowThreads, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        spent = [0.0] * len(calls)

        def measured(index: int) -> Any:
            started = time.thread_time()
            try:
                return calls[index]()
            finally:
                spent[index] = time.thread_time() - started

        try:
            return run(self, [lambda index=index: measured(index) for index in range(len(calls))])  # type: ignore[misc]
        finally:
            seconds["waited for threads"] += max(spent) - spent[0]
            seconds["other threads"] += sum(spent[1:])

    RowThreads.run = timed_run  # type: ignore[method-assign]


def timed(function: Callable[..., Any], name: str, seconds: Counter[str]) -> Callable[..., Any]:
    def measured(*arguments: Any, **keywords: Any) -> Any:
        started = time.thread_time()
        try:
            return function(*arguments, **keywords)
        finally:
            seconds[name] += time.thread_time() - started

    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    seconds: Counter[str] = Counter()
    watch(seconds)
    loaded = loader.load("tiny")
    renderer, without_end = Renderer(loaded.tokenizer), Renderer(loaded.tokenizer)
    without_end.end_ids = ()  # for the engine only: the expert's replies are read up to their end token
    engine = LocalEngine(Decoder(loaded.model), without_end, max_batch=args.batch)
    size = replace(TINY, episodes=args.episodes)
    rows: list[Row] = []
    for repeat in range(args.repeats + 1):
        seconds.clear()
        started = time.process_time()
        row = asyncio.run(play(size, engine, renderer, "calculator", False, Ledger()))
        row["processor seconds"] = time.process_time() - started
        row["parts"] = dict(seconds)
        row["critical path"] = sum(seconds[name] for name in ("admit", "decode_or_retry", "waited for threads"))
        row["load average"] = os.getloadavg()[0]
        if repeat:  # the first one warms up
            rows.append(row)
            print(
                f"{row['episodes/s']:.1f} episodes/s by the clock (load average {row['load average']:.1f}), "
                f"{row['processor seconds']:.2f} s of processor time, critical path {row['critical path']:.2f} s",
                flush=True,
            )
    asyncio.run(engine.close())
    median = statistics.median(row["episodes"] / row["critical path"] for row in rows)
    print(f"median: {median:.1f} episodes per second of the critical path; parts of the last run: {rows[-1]['parts']}")
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
