"""`practicum envs`: what can be trained on; `show`: its options; `check`: is it sound; `serve`: an AgentGym server."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from practicum.cli.options import environment_options, positive
from practicum.utils.tables import shortened
from practicum.utils.terminal import ArgumentParser, say, text_width, wrap

if TYPE_CHECKING:
    from practicum.evaluation.environment_check import CheckResult


def run(argv: list[str]) -> int:
    parser = ArgumentParser(prog="practicum envs", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("list", "show", "check", "serve", "digest"), default="list")
    parser.add_argument("name", nargs="?", help="an environment, or (to check) 'all'")
    parser.add_argument("--tasks", type=positive, default=50, help="check: tasks to check with")
    parser.add_argument(
        "--env-arg", action="append", default=[], metavar="KEY=VALUE", help="an option of the environment (JSON value)"
    )
    parser.add_argument("--data", help="check: JSON file of tasks, instead of the environment's own")
    parser.add_argument("--tools", help="check: comma-separated tools instead of the environment's own")
    parser.add_argument("--reward", help="check: reward instead of the environment's own")
    parser.add_argument("--host", default="127.0.0.1", help="serve: address to listen on")
    parser.add_argument("--port", type=int, default=36001, help="serve: port to listen on (0: any that is free)")
    parser.set_defaults(split="train")
    args = parser.parse_args(argv)
    from practicum import registry
    from practicum.errors import UserError

    if args.action == "list":
        for name in registry.ENVIRONMENTS:
            summary = (registry.environment_class(name).__doc__ or "").strip().splitlines()[0]
            line = f"{name:<20} {summary}"  # in a pipe one line per environment
            print("\n".join(wrap(line, sys.stdout, 21 * " ")) if sys.stdout.isatty() else line)
        return 0
    if args.name is None:
        raise UserError(f"Say which environment to {args.action}: `practicum envs {args.action} NAME`.")
    options = environment_options(args)
    if args.action == "show":
        return show(args.name)
    if args.action == "serve":
        if not 0 <= args.port < 65536:
            raise UserError(f"--port {args.port}: a port lies between 0 and 65535.")
        return serve(args.name, args.host, args.port, options)
    if args.action == "digest":
        return digests(args.name.split(","), args.tasks, options)
    # `tools` and `mix` have no tasks of their own to check: theirs come from a file and from other environments. The
    # sites of `real` are on the Internet, and there is no expert.
    checkable = [name for name in registry.ENVIRONMENTS if name not in ("tools", "mix", "real")]
    if args.name != "all":
        registry.environment_class(args.name)  # an unknown name is an error before the table begins
    return check_all(checkable if args.name == "all" else [args.name], args.tasks, options)


def show(name: str) -> int:
    """Print what an environment is and the options that `--env-arg` sets, with their defaults."""
    from practicum import registry

    cls = registry.environment_class(name)
    say(f"{name}: {inspect.cleandoc(cls.__doc__ or 'no description').splitlines()[0]}")
    say(f"formats: {', '.join(cls.formats)} (--format; default {cls.formats[0]})")
    print(f"floor of a null policy {cls.floor:g}, ceiling of the expert {cls.ceiling:g}")
    if cls.scripted_policies:
        say(f"scripted policies besides expert, random and null: {', '.join(cls.scripted_policies)} (--policy)")
    options = {key: value for key, value in registry.options(name).items() if key != "format"}
    print("options (--env-arg KEY=VALUE):" if options else "no options")
    for key, parameter in options.items():
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        kind = "" if parameter.annotation is parameter.empty else f": {inspect.formatannotation(parameter.annotation)}"
        say(f"  {key}{kind.replace(chr(39), '')}{default}")
    return 0


def serve(name: str, host: str, port: int, options: Mapping[str, Any]) -> int:
    """Serve an environment of AgentGym until it is stopped."""
    from practicum.environments.agentgym import server
    from practicum.utils.concurrency import run_async

    def announce(address: str) -> None:
        say(f"{name} at {address} (Ctrl-C stops it)")
        if host not in server.LOOPBACK:
            say("Everybody who can reach this machine can use these environments.")

    run_async(server.serve(name, host, port, options, announce))
    return 0


def check_all(names: list[str], count: int, options: Mapping[str, Any]) -> int:
    """Print a line for every environment and its faults below it; 1 if one has a fault or cannot be checked."""
    from practicum.errors import UserError
    from practicum.evaluation.environment_check import check_environments

    headers = (
        "environment",
        "oracle",
        "ceiling",
        "null",
        "floor",
        "wrong",
        "repeats",
        "splits",
        "steps/s",
        "open",
        "MB",
    )
    print(_columns(headers, "verdict"))
    passed = []
    for name, result in check_environments(names, count, options):
        if isinstance(result, UserError):
            if len(names) == 1:
                raise result
            print(f"{name:<18} not checked:")
            _print_indented(str(result))
            passed.append(False)
            continue
        print(_line(name, result), flush=True)
        for fault in result.faults:
            _print_indented(fault)
        passed.append(not result.faults)
    if any(passed):
        text = "oracle, null: success rates; wrong: wrong answers accepted/played; MB: of the open episodes"
        say(text)
    return 0 if all(passed) else 1


def _line(name: str, result: CheckResult) -> str:
    repeats = "same" if result.repeats and result.replays else "unknown" if result.replays is None else "DIFFERS"
    wrong = f"{result.answers.accepted}/{result.answers.wrong}" if result.answers.wrong else "-"
    verdict = f"{len(result.faults)} fault{'s' if len(result.faults) > 1 else ''}" if result.faults else "sound"
    splits = "disjoint" if result.disjoint else "OVERLAP"
    rates = (f"{result.oracle:.3f}", f"{result.ceiling:.2f}", f"{result.null:.2f}", f"{result.floor:.2f}", wrong)
    cells = (name, *rates, repeats, splits, f"{result.speed:.0f}", str(result.num_open), f"{result.megabytes:.0f}")
    return _columns(cells, verdict)


COLUMN_WIDTHS = (-18, 7, 8, 6, 6, 7, 8, 9, 8, 5, 6)
WIDE_COLUMNS = {2, 4, 9}
"""Columns left out where the terminal has fewer than 100: limits that the environment declares, and a count."""


def _columns(cells: Sequence[str], verdict: str) -> str:
    narrow = text_width(sys.stdout) < 100
    widths = [0 if narrow and index in WIDE_COLUMNS else width for index, width in enumerate(COLUMN_WIDTHS)]
    shown = [
        shortened(cell, -width).ljust(-width) if width < 0 else cell.rjust(width)
        for cell, width in zip(cells, widths, strict=True)
        if width
    ]
    return f"{''.join(shown)}  {verdict}"


def _print_indented(text: str) -> None:
    print("\n".join(wrap(f"  - {text}", sys.stdout, "    ")), flush=True)


def digests(names: list[str], count: int, options: Mapping[str, Any]) -> int:
    """For `envs check` in another process: a digest of each environment's first episodes in this one."""
    from practicum.evaluation.environment_check import NO_DIGEST, digest

    for name in names:
        try:
            value = asyncio.run(digest(name, count, options))
        except Exception:  # the first process says why: it plays the same tasks
            value = NO_DIGEST
        print(f"digest {name} {value}", flush=True)
    return 0
