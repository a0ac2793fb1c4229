"""`practicum envs`: what can be trained on. `practicum envs check NAME`: is it sound?"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING

from practicum.cli.options import positive

if TYPE_CHECKING:
    from practicum.trajectory import Trajectory
    from practicum.workbench import Workbench


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum envs", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("list", "check"), default="list")
    parser.add_argument("name", nargs="?", help="an environment, or 'all'")
    parser.add_argument("--tasks", type=positive, default=50, help="tasks to check with")
    args = parser.parse_args(argv)
    from practicum import registry
    from practicum.errors import UserError

    if args.action == "list":
        for name in registry.ENVIRONMENTS:
            summary = (registry.environment_class(name).__doc__ or "").strip().splitlines()[0]
            print(f"{name:<20} {summary}")
        return 0
    if args.name is None:
        raise UserError("Say which environment to check: `practicum envs check NAME` (or 'all').")
    # `tools` plays whatever file it is given: it has no tasks of its own to check.
    names = [name for name in registry.ENVIRONMENTS if name != "tools"] if args.name == "all" else [args.name]
    print(f"{'environment':<20} {'expert':>7} {'null':>7} {'floor':>6} {'repeat':>7} {'splits':>8} {'steps/s':>8}")
    sound = [asyncio.run(check(name, args.tasks)) for name in names]
    return 0 if all(sound) else 1


async def check(name: str, count: int) -> bool:
    """Oracle, null policy, determinism, disjoint splits and speed of one environment."""
    from practicum.workbench import make_workbench

    expert = make_workbench(name, "expert", max_turns=200)
    begun = time.perf_counter()
    solved = await _play(expert, count)
    speed = sum(len(e.turns) for e in solved) / (time.perf_counter() - begun)
    again = await _play(expert, count)
    idle = await _play(make_workbench(name, "null", max_turns=5), count)
    oracle, floor = _mean(solved), _mean(idle)
    repeat = solved == again
    worlds = [{t.hash for t in expert.environment.tasks(split, count)} for split in ("train", "val", "test")]
    disjoint = not (worlds[0] & worlds[1] or worlds[0] & worlds[2] or worlds[1] & worlds[2])
    stated = expert.environment.floor
    faults = [
        text
        for wrong, text in (
            (oracle < 0.95, "the expert fails"),
            (floor > stated + 1e-9, "the null policy is above its floor"),
            (not repeat, "the same seed gave another episode"),
            (not disjoint, "splits overlap"),
        )
        if wrong
    ]
    print(
        f"{name:<20} {oracle:>7.3f} {floor:>7.3f} {stated:>6.2f} {'same' if repeat else 'DIFFERS':>7} "
        f"{'disjoint' if disjoint else 'OVERLAP':>8} {speed:>8.0f}  {'sound' if not faults else '; '.join(faults)}"
    )
    return not faults


async def _play(bench: Workbench, count: int) -> list[Trajectory]:
    from practicum.rollout import attempts, run_episodes

    planned = attempts(bench.environment.tasks("train", count), 1, 0)
    return await run_episodes(planned, bench.make_environment, bench.agent, bench.engine, bench.renderer)


def _mean(episodes: list[Trajectory]) -> float:
    return sum(e.outcome.value == "success" for e in episodes) / len(episodes)
