"""Steps per second of the stock ALFWorld and ScienceWorld packages and of ours, on the same commands, in one run.

    python benchmarks/agentgym_engines.py [alfworld] [sciworld] [--rounds N]

Both play the same games with the same commands; rounds alternate, so a busy machine hurts both alike. Ours includes the
way to the worker and back. Transcripts are compared too: a faster engine that says something else would be no engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from practicum.environments.agentgym import alfworld, sciworld, sciworld_tasks
from practicum.environments.worker import WorkerPool, close_pools

STOCK_ALFWORLD = """
import json, sys, time
from practicum.environments.agentgym import alfworld_engine, alfworld_host
alfworld_engine.stock()
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
from textworld.envs.pddl.pddl import PddlEnv
for line in sys.stdin:
    number, commands = json.loads(line)
    infos = textworld.EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
    environment = AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
    begun = time.perf_counter()
    environment.load(alfworld_host.load(number))
    state = environment.reset()
    loaded, answers = time.perf_counter(), []
    for command in commands:
        state, _, _ = environment.step(command)
        answers.append([state.feedback, state.admissible_commands])
    print(json.dumps([loaded - begun, time.perf_counter() - loaded, answers]), flush=True)
"""
STOCK_SCIWORLD = """
import json, sys, time
from scienceworld import ScienceWorldEnv
env = ScienceWorldEnv("", None, envStepLimit=10_000)
for line in sys.stdin:
    (name, variation), commands = json.loads(line)
    begun = time.perf_counter()
    env.load(name, variation, "")
    env.reset()
    loaded, answers = time.perf_counter(), []
    for command in commands:
        text, _, _, info = env.step(command)
        answers.append([text, info["score"]])
    print("RESULT" + json.dumps([loaded - begun, time.perf_counter() - loaded, answers]), flush=True)
"""
JAVA = "-Xmx1024m -XX:+UseSerialGC -XX:+UnlockExperimentalVMOptions -XX:hashCode=2"
Way = tuple[Any, list[str]]
Play = Callable[[Way], tuple[float, float, list[Any]]]


def stock(program: str) -> tuple[Play, subprocess.Popen[str]]:
    """The stock package in a process of its own, asked line by line."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "JAVA_TOOL_OPTIONS": JAVA}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=environment,
    )  # fmt: skip

    def run_recorded(way: Way) -> tuple[float, float, list[Any]]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(way) + "\n")
        process.stdin.flush()
        loaded, stepped, answers = json.loads(process.stdout.readline().removeprefix("RESULT"))
        return loaded, stepped, answers

    return run_recorded, process


def ours(pool: WorkerPool, begin: Callable[[Any], dict[str, Any]], step: dict[str, Any], keys: list[str]) -> Play:
    def run_recorded(way: Way) -> tuple[float, float, list[Any]]:
        async def run() -> tuple[float, float, list[Any]]:
            session = pool.open_session()
            started = time.perf_counter()
            await session.call("begin", **begin(way[0]))
            loaded, answers = time.perf_counter(), []
            for command in way[1]:
                answer = await session.call("step", command=command, **step)
                answers.append([answer[key] for key in keys])
            done = time.perf_counter()
            session.close()
            return loaded - started, done - loaded, answers

        return asyncio.run(run())

    return run_recorded


def compare(name: str, ways: list[Way], peer: Play, practicum_run: Play, rounds: int) -> None:
    peer(ways[0]), practicum_run(ways[0])  # the first of each starts processes and fills caches
    rates: dict[str, list[float]] = {"stock": [], "ours": []}
    loads: dict[str, list[float]] = {"stock": [], "ours": []}
    same = True
    for _ in range(rounds):
        for way in ways:
            (a, b, answer), (c, d, answers) = peer(way), practicum_run(way)
            same = same and answer == answers
            rates["stock"].append(len(way[1]) / b)
            rates["ours"].append(len(way[1]) / d)
            loads["stock"].append(a)
            loads["ours"].append(c)
    ratio = statistics.median(y / x for x, y in zip(rates["stock"], rates["ours"], strict=True))
    print(
        f"{name}: stock {statistics.median(rates['stock']):.1f} steps/s, ours {statistics.median(rates['ours']):.1f}, "
        f"{ratio:.1f} x; load {statistics.median(loads['stock']):.2f} s, ours {statistics.median(loads['ours']):.2f}; "
        f"transcripts {'the same' if same else 'DIFFER'}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*", default=["alfworld", "sciworld"])
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    ways: list[Way]
    if "alfworld" in args.engines:
        pool = alfworld.pool_of(1)
        ways = [
            (n, [*pool.ask("plan", game=n, expert="walkthrough"), "look", "inventory", "sing"]) for n in (1, 2, 6, 8)
        ]
        peer, process = stock(STOCK_ALFWORLD)
        practicum_run = ours(pool, lambda game: {"game": game, "expert": ""}, {}, ["text", "legal"])
        compare("alfworld", ways, peer, practicum_run, args.rounds)
        process.kill()
    if "sciworld" in args.engines:
        pool = sciworld.pool_of()
        ways = []
        for name, variation in (("find-animal", 15), ("power-component", 1), ("change-the-state-of-matter-of", 12)):
            assert name in sciworld_tasks.VARIATIONS
            ways.append(([name, variation], pool.ask("gold", task=name, variation=variation)))
        peer, process = stock(STOCK_SCIWORLD)

        def begin(named: list[Any]) -> dict[str, Any]:
            return {"task": named[0], "variation": named[1], "gold": False}

        compare("sciworld", ways, peer, ours(pool, begin, {"legal": False}, ["text", "score"]), args.rounds)
        process.kill()
    close_pools()


if __name__ == "__main__":
    main()
