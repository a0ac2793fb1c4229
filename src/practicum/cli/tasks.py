"""`practicum tasks snapshot`: a frozen, hashed file of tasks, for --task_registry of `collect`, `eval` and `matrix`."""

from __future__ import annotations

from pathlib import Path

from practicum.cli.options import HelpFormatter, environment_options, normalize_flags, positive
from practicum.errors import UserError
from practicum.utils.terminal import ArgumentParser, say


def run(argv: list[str]) -> int:
    args = make_parser().parse_args(normalize_flags(argv))
    from practicum.evaluation.task_snapshot import REAL, snapshot_environment, snapshot_real, write_snapshot

    if args.out.is_dir():
        raise UserError(f"--out {args.out} is a folder; name a file.")
    if args.source == REAL:
        registry = snapshot_real(args.task_version, args.site)
    else:
        if args.site is not None:
            raise UserError("--site goes with --source real.")
        options = environment_options(args)
        registry = snapshot_environment(args.source, args.split, args.tasks, args.seed, options)
    if not registry["tasks"]:
        raise UserError(f"There are no such tasks of '{args.source}'.")
    write_snapshot(args.out, registry)
    say(f"{len(registry['tasks'])} tasks in {args.out}, hash {registry['hash']}")
    for site, count in registry.get("counts_by_site", {}).items():
        print(f"  {site:<12} {count:>4}")
    return 0


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="practicum tasks",
        description=__doc__,
        formatter_class=HelpFormatter,
        epilog="example: practicum tasks snapshot --task_version v2 --out configs/real_v2_task_registry.json\n"
        "example: practicum tasks snapshot --source web --env-arg text=false --tasks 500 --out web.json",
    )
    parser.add_argument("action", choices=("snapshot",))
    parser.add_argument("--source", default="real", help="real (the package agisdk), or an environment")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("--task-version", default="v2", help="real: version of the tasks")
    parser.add_argument("--site", help="real: tasks of this site only")
    parser.add_argument("--split", default="test", choices=("train", "val", "test"), help="other sources: which tasks")
    parser.add_argument("--tasks", type=positive, default=300, help="other sources: how many")
    parser.add_argument("--seed", type=int, default=0, help="other sources: seed of the tasks")
    parser.add_argument(
        "--env-arg", action="append", default=[], metavar="KEY=VALUE", help="an option of the environment (JSON value)"
    )
    parser.set_defaults(tools=None, reward=None, data=None)
    return parser
