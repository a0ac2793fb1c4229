"""Episodes with a tool in several processes on one GPU, each with an engine of its own, as rollout workers have them.

    python benchmarks/gpu_agents.py --out FILE.json [--processes 1,2,4,8] [--episodes 512]
    python benchmarks/gpu_agents.py --tiny --processes 1,2 --out FILE.json    on a CPU: its figures mean nothing

In one process Python's lock, which the event loop and the engine's thread share, is the limit while the GPU works a
fifth of the time (`gpu.py --only agent`). Processes share no lock: the rate of 1, 2, 4 and 8 of them shows how far that
goes. Every process plays all episodes of `gpu_legs/agent.py`, three turns with the calculator; a round begins when all
are ready and ends with the last one. All processes are started and warmed up once, before the first round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_legs import needs

needs.prepare()
ROUNDS = 2


def player(tiny: bool, episodes: int, share: float) -> None:
    """Play a round for every line that is read; `share`: of the free memory, for keys and values."""
    from gpu_legs.agent import Ledger, make_engine, play
    from gpu_legs.common import TINY, Size

    size = TINY if tiny else replace(Size(), episodes=episodes)
    engine, renderer, what = make_engine(size, gpu_memory_utilization=share)

    def round_() -> dict[str, Any]:
        return asyncio.run(play(size, engine, renderer, "calculator", False, Ledger()))

    for _ in range(2):  # kernels are built and graphs captured
        round_()
    print(json.dumps({"model": what}), flush=True)
    for _ in sys.stdin:
        row = round_()
        print(json.dumps({**row, "ended": time.time()}), flush=True)
    asyncio.run(engine.close())


def start(count: int, args: argparse.Namespace) -> list[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--player", "--episodes", str(args.episodes), "--share", str(0.4 / count)]
    return [
        subprocess.Popen(
            command + ["--tiny"] * args.tiny, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(count)
    ]


def read(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next JSON line; other output is passed on."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            result: dict[str, Any] = json.loads(line)
            return result
        print(line, end="", flush=True)
    raise SystemExit(f"a process ended with exit code {process.wait()}")


def play_round(processes: list[subprocess.Popen[str]]) -> dict[str, Any]:
    started = time.time()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    rows = [read(process) for process in processes]
    episodes, seconds = sum(row["episodes"] for row in rows), max(row["ended"] for row in rows) - started
    return {
        "processes": len(rows), "episodes": episodes, "seconds": seconds, "episodes/s": episodes / seconds,
        "turns": sum(row["turns"] for row in rows), "each episodes/s": [row["episodes/s"] for row in rows],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", default="1,2,4,8")
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--player", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=0.1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.player:
        player(args.tiny, args.episodes, args.share)
        return
    counts = [int(count) for count in args.processes.split(",")]
    processes, rows = start(max(counts), args), list[dict[str, Any]]()
    try:
        models = [read(process)["model"] for process in processes]
        for count in counts:
            for _ in range(ROUNDS):
                rows.append({"model": models[0], **play_round(processes[:count])})
                print(f"{count} processes: {rows[-1]['episodes/s']:,.0f} episodes/s", flush=True)
                if args.out is not None:
                    args.out.write_text(json.dumps(rows, indent=1) + "\n")
    finally:
        for process in processes:
            process.kill()


if __name__ == "__main__":
    main()
