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
import sys
import time
from pathlib import Path

from versions import Side, compare, show

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


def start(version: Path, kind: str) -> Side:
    """A process that measures a kind of a version."""
    version = version.resolve()
    path = os.pathsep.join(str(version / name) for name in ("src", "benchmarks"))
    return Side([sys.executable, str(Path(__file__).resolve()), "--measure", kind, "--path", path], cwd=version)


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
    old, new = arguments.old, arguments.new
    results = {kind: compare([start(old, kind), start(new, kind)], arguments.repeats) for kind in arguments.kinds}
    show(results)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
