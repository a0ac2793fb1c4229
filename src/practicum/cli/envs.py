"""`practicum envs`: what can be trained on; `envs check NAME`: is it sound; `envs serve NAME`: for AgentGym clients."""

from __future__ import annotations

import argparse
import asyncio
import textwrap
from collections.abc import Mapping
from typing import Any

from practicum.cli.options import environment_options, positive


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum envs", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("list", "check", "serve", "digest"), default="list")
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
            print(f"{name:<20} {textwrap.shorten(summary, 79, placeholder=' …')}")
        return 0
    if args.name is None:
        raise UserError(f"Say which environment to {args.action}: `practicum envs {args.action} NAME`.")
    options = environment_options(args)
    if args.action == "serve":
        if not 0 <= args.port < 65536:
            raise UserError(f"--port {args.port}: a port lies between 0 and 65535.")
        return serve(args.name, args.host, args.port, options)
    if args.action == "digest":
        return digests(args.name.split(","), args.tasks, options)
    # `tools` and `mix` have no tasks of their own to check: theirs come from a file and from other environments.
    checkable = [name for name in registry.ENVIRONMENTS if name not in ("tools", "mix")]
    return check_all(checkable if args.name == "all" else [args.name], args.tasks, options)


def serve(name: str, host: str, port: int, options: Mapping[str, Any]) -> int:
    """Serve an environment of AgentGym until it is stopped."""
    from practicum.environments.agentgym import server

    def announce(address: str) -> None:
        print(f"{name} at {address} (Ctrl-C stops it)", flush=True)
        if host not in server.LOOPBACK:
            print("Everybody who can reach this machine can use these environments.", flush=True)

    asyncio.run(server.serve(name, host, port, options, announce))
    return 0


def check_all(names: list[str], count: int, options: Mapping[str, Any]) -> int:
    """A line for every environment; 1 where one has a fault or cannot be checked."""
    from practicum.errors import UserError
    from practicum.evaluation.environment_check import check_environments

    print(
        f"{'environment':<18}{'oracle':>7}{'ceiling':>8}{'null':>6}{'floor':>6}{'repeats':>9}{'splits':>9}"
        f"{'steps/s':>8}{'open':>5}{'MB':>6}  verdict"
    )
    sound = []
    for name, result in check_environments(names, count, options):
        if isinstance(result, UserError):
            if len(names) == 1:
                raise result
            print(f"{name:<18} not checked: {result}")  # one that is not installed must not hide the others
            sound.append(False)
            continue
        repeats = "same" if result.repeats and result.replays else "DIFFERS"
        verdict = "sound" if not result.faults else "; ".join(result.faults)
        print(
            f"{name:<18}{result.oracle:>7.3f}{result.ceiling:>8.2f}{result.null:>6.2f}{result.floor:>6.2f}"
            f"{repeats:>9}{'disjoint' if result.disjoint else 'OVERLAP':>9}{result.speed:>8.0f}{result.num_open:>5}"
            f"{result.megabytes:>6.0f}  {verdict}",
            flush=True,
        )
        sound.append(not result.faults)
    return 0 if all(sound) else 1


def digests(names: list[str], count: int, options: Mapping[str, Any]) -> int:
    """For `envs check` in another process: a digest of each environment's first episodes in this one."""
    from practicum.errors import UserError
    from practicum.evaluation.environment_check import digest

    for name in names:
        try:
            print(f"digest {name} {asyncio.run(digest(name, count, options))}", flush=True)
        except UserError:
            print(f"digest {name} none", flush=True)
    return 0
