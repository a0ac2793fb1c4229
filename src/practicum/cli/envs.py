"""`practicum envs`: what can be trained on; `envs check NAME`: is it sound; `envs serve NAME`: for AgentGym clients."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from practicum.cli.options import environment_options, positive

if TYPE_CHECKING:
    from practicum.trajectory import Trajectory
    from practicum.workbench import Workbench


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum envs", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("list", "check", "serve"), default="list")
    parser.add_argument("name", nargs="?", help="an environment, or (to check) 'all'")
    parser.add_argument("--tasks", type=positive, default=50, help="check: tasks to check with")
    parser.add_argument(
        "--env-arg", action="append", default=[], metavar="KEY=VALUE", help="an option of the environment (JSON value)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="serve: address to listen on")
    parser.add_argument("--port", type=int, default=36001, help="serve: port to listen on (0: any that is free)")
    parser.set_defaults(tools=None, reward=None, data=None)
    args = parser.parse_args(argv)
    from practicum import registry
    from practicum.errors import UserError

    if args.action == "list":
        for name in registry.ENVIRONMENTS:
            summary = (registry.environment_class(name).__doc__ or "").strip().splitlines()[0]
            print(f"{name:<20} {summary}")
        return 0
    if args.name is None:
        raise UserError(f"Say which environment to {args.action}: `practicum envs {args.action} NAME`.")
    options = environment_options(args)
    if args.action == "serve":
        return asyncio.run(serve(args.name, args.host, args.port, options))
    # `tools` plays whatever file it is given: it has no tasks of its own to check.
    names = [name for name in registry.ENVIRONMENTS if name != "tools"] if args.name == "all" else [args.name]
    print(f"{'environment':<20} {'expert':>7} {'null':>7} {'floor':>6} {'repeat':>7} {'splits':>8} {'steps/s':>8}")
    sound = []
    for name in names:
        try:
            sound.append(asyncio.run(check(name, args.tasks, options)))
        except UserError as error:
            if len(names) == 1:
                raise
            print(f"{name:<20} not checked: {error}")  # one that is not installed must not hide the others
            sound.append(False)
    return 0 if all(sound) else 1


async def serve(name: str, host: str, port: int, options: Mapping[str, Any]) -> int:
    """Serve one of AgentGym's worlds until it is stopped."""
    from practicum.environments.agentgym.base import AgentGymEnvironment
    from practicum.environments.agentgym.server import House, Server
    from practicum.errors import UserError
    from practicum.registry import environment_class

    if not issubclass(environment_class(name), AgentGymEnvironment):
        raise UserError(f"'{name}' is not one of AgentGym's worlds; only agentgym:… can be served.")
    from practicum.workbench import environment_maker  # brings torch, which is slow to import

    maker, _ = environment_maker(name, None, options)

    def make() -> AgentGymEnvironment:
        world = maker()
        assert isinstance(world, AgentGymEnvironment)
        return world

    async with Server(House(make), host, port) as server:
        print(f"{name} at {server.address} (Ctrl-C stops it)", flush=True)
        await asyncio.Event().wait()
    return 0


async def check(name: str, count: int, options: Mapping[str, Any] | None = None) -> bool:
    """Oracle, null policy, determinism, disjoint splits and speed of one environment."""
    from practicum.workbench import make_workbench

    expert = make_workbench(name, "expert", max_turns=200, options=options)
    begun = time.perf_counter()
    solved = await _play(expert, count)
    speed = sum(len(e.turns) for e in solved) / (time.perf_counter() - begun)
    again = await _play(expert, count)
    idle = await _play(make_workbench(name, "null", max_turns=5, options=options), count)
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
