"""The local engine of two versions of this package on a CPU, in alternation: medians and ratios.

    git archive COMMIT src benchmarks | tar -x -C /tmp/old
    python benchmarks/engine_versions.py /tmp/old . [--kinds requests conversations] [--repeats 12] [--out FILE.json]

Model `tiny`, as in `engine_cpu.py`. `requests`: 64 of mixed lengths. `conversations`: 16 of 8 turns, 200 + 48 tokens
per turn, 8 new tokens per turn, keys and values kept. Each version is a process of its own, with its `engine_cpu.py`;
the two alternate, and so does the order within a pair. Seconds by the clock and processor seconds of all threads; a
ratio is new / old, with the 95 % interval of its median. The number of threads is torch's default.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from versions import median_interval

KINDS = ("requests", "conversations")
CONVERSATIONS, TURNS = 16, 8


def measure(kind: str, path: str) -> None:
    """Per line of stdin run one `kind` of the version in `path` and print seconds and processor seconds."""
    sys.path[:0] = path.split(os.pathsep)
    import engine_cpu as benchmark

    loaded = benchmark.loader.load("tiny")
    requests = benchmark.make_requests("tiny", 64, 0)
    engine = benchmark.LocalEngine(
        benchmark.Decoder(loaded.model), benchmark.endless(benchmark.Renderer(loaded.tokenizer)),
        max_batch=64 if kind == "requests" else CONVERSATIONS,
    )  # fmt: skip
    end_session = getattr(engine, "end_session", None) or engine.forget  # its name until 2026-11-16

    async def conversation(index: int) -> None:
        rng = random.Random(index)
        ids = tuple(rng.randrange(300, 700) for _ in range(200))
        for turn in range(TURNS):
            sampling = benchmark.Sampling(max_tokens=8, seed=1000 * index + turn)
            task, observation = benchmark.Task("b", "bench", "train"), benchmark.Observation()
            reply = await engine.generate(benchmark.Request(ids, sampling, task, observation, (), session=str(index)))
            ids = (*ids, *reply.ids, *(rng.randrange(300, 700) for _ in range(40)))
        end_session(str(index))

    async def run(version: int) -> None:
        engine.weights_changed(version)  # every run starts with cold caches
        if kind == "requests":
            await benchmark.engine_seconds(engine, requests)
        else:
            await asyncio.gather(*map(conversation, range(CONVERSATIONS)))

    async def serve() -> None:
        await run(1)
        print("ready", flush=True)
        version = 1
        while await asyncio.to_thread(sys.stdin.readline):
            version += 1
            wall, cpu = time.perf_counter(), time.process_time()
            await run(version)
            print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)
        await engine.close()

    asyncio.run(serve())


class Side:
    """A process with one version."""

    def __init__(self, version: Path, kind: str) -> None:
        version = version.resolve()
        path = os.pathsep.join(str(version / name) for name in ("src", "benchmarks"))
        command = [sys.executable, str(Path(__file__).resolve()), "--measure", kind, "--path", path]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=version,
            env={**os.environ, "GOMP_SPINCOUNT": "0"},
        )  # fmt: skip
        assert self._line() == "ready"
        self.seconds: list[tuple[float, float]] = []

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(self) -> None:
        assert self.process.stdin is not None
        print("run", file=self.process.stdin, flush=True)
        wall, cpu = json.loads(self._line())
        self.seconds.append((wall, cpu))

    def close(self) -> None:
        self.process.communicate()


def compare(old: Path, new: Path, kind: str, repeats: int) -> dict[str, Any]:
    """Medians of both versions, and the median of the ratios of pairs with its interval."""
    sides = [Side(old, kind), Side(new, kind)]
    for repeat in range(repeats):
        for side in sides if repeat % 2 == 0 else sides[::-1]:
            side.run()
    for side in sides:
        side.close()
    result: dict[str, Any] = {"repeats": repeats}
    for index, clock in enumerate(("wall", "processor")):
        before, after = ([pair[index] for pair in side.seconds] for side in sides)
        ratios = [second / first for first, second in zip(before, after, strict=True)]
        result[clock] = {
            "old": statistics.median(before), "new": statistics.median(after),
            "ratio": statistics.median(ratios), "interval": list(median_interval(ratios)),
        }  # fmt: skip
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, nargs="?", help="folder with src/ and benchmarks/ of the older version")
    parser.add_argument("new", type=Path, nargs="?", help="folder with src/ and benchmarks/ of the newer version")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.path)
        return
    for version in (arguments.old, arguments.new):
        if version is None or not (version / "benchmarks" / "engine_cpu.py").exists():
            parser.error(f"{version} is no folder with src/ and benchmarks/ of a version.")
    results = {kind: compare(arguments.old, arguments.new, kind, arguments.repeats) for kind in arguments.kinds}
    print(f"{'':<15}{'clock':<12}{'old':>9}{'new':>9}{'ratio':>8}  95 %")
    for kind, result in results.items():
        for clock in ("wall", "processor"):
            row, (low, high) = result[clock], result[clock]["interval"]
            times = f"{row['old']:>8.3f}s{row['new']:>8.3f}s{row['ratio']:>8.3f}"
            print(f"{kind:<15}{clock:<12}{times}  {low:.3f} {high:.3f}")
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
