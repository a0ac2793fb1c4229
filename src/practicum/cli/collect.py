"""`practicum collect`: rollouts of any policy into a folder of episodes; run again, it continues where it stopped."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from practicum.cli.options import (
    HelpFormatter,
    add_environment_flags,
    add_policy_flags,
    normalize_flags,
    positive,
    rollout_fields,
)
from practicum.errors import UserError
from practicum.utils.terminal import ArgumentParser, say

if TYPE_CHECKING:
    from practicum.collector import CollectSettings

EXPLORATION_FLAGS = ("task", "temperature_a", "temperature_b", "compare_steps")


def run(argv: list[str]) -> int:
    args = make_parser().parse_args(expand_experiment(normalize_flags(argv)))
    if args.verify_exploration:
        try:
            return verify(args)
        except UserError as error:  # 2 would mean that nothing diverged
            say(f"practicum: {error}", sys.stderr)
            return 1
    for name in EXPLORATION_FLAGS:
        if vars(args)[name] is not None:
            raise UserError(f"--{name.replace('_', '-')} goes with --verify-exploration.")
    from practicum.cli.modes import explained_url
    from practicum.collector import collect  # brings torch, which is slow to import: not for --help

    with explained_url(argv):
        result = collect(settings_from(args))
    say(result.describe())
    if result.unscored_warning is not None:
        say(f"practicum: {result.unscored_warning}", sys.stderr)
        return 1
    return 0


def expand_experiment(argv: list[str]) -> list[str]:
    """The arguments with the flags of an experiment in front of them, if --experiment or --mode names one of the file.

    A name that no file has is only the folder's, unless the file was given or --mode names an experiment.
    """
    parser = experiment_parser()
    options, typed = parser.parse_known_args(argv)
    name = options.mode or options.experiment
    if name is None or {"-h", "--help"} & set(argv):
        return argv
    from practicum.cli.modes import read_modes, typed_over, with_subset
    from practicum.config.experiments import read_experiments

    if options.mode is None and options.config is None and name not in read_experiments(None).entries:
        return argv
    (experiment,) = read_modes(options.config, [name])
    flags = typed_over(experiment, with_subset(options.config, typed))
    return ["--out", "data/trajectories", *flags, "--experiment", options.experiment or name]


def experiment_parser() -> ArgumentParser:
    """The flags that may name an experiment."""
    parser = ArgumentParser(prog="practicum collect", add_help=False, allow_abbrev=False)
    group = parser.add_argument_group("experiments")
    group.add_argument(
        "--experiment", help="folder below --out (default: collect); if --config has an experiment of this name, its "
        "settings are taken, and --out is data/trajectories unless another is given",
    )  # fmt: skip
    group.add_argument("--mode", help="experiment whose settings are taken, if the folder has another name")
    group.add_argument("--config", type=Path, help="file of experiments (default: configs/experiments.yaml)")
    return parser


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="practicum collect",
        parents=[experiment_parser()],
        description=__doc__,
        formatter_class=HelpFormatter,
        epilog="example: practicum collect --env math --policy expert --tasks 500 --out runs\n"
        "Words of a flag may be joined by - or _ alike.",
    )
    add_environment_flags(parser)
    add_policy_flags(parser)
    parser.set_defaults(tasks=None)
    parser.add_argument("--rollouts-per-task", type=positive, default=1, help="episodes of each task")
    parser.add_argument("--task-seed", type=int, default=0, help="seed of the world: this + 1000 × task + rollout")
    parser.add_argument("--sample-size", type=positive, help="tasks to draw from the split or registry, by --seed")
    parser.add_argument("--subset", help="only tasks of an environment, site, level or FIELD=VALUE, or these ids: a,b")
    parser.add_argument("--task-registry", type=Path, help="JSON file of the tasks to play")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of all experiments")
    parser.add_argument("--run-id", default=None, help="folder of this run (default: from the policy and the seed)")
    parser.add_argument("--watch", action="store_true", help="show the first episode as it happens")
    check = parser.add_argument_group("exploration", "does temperature change what the policy does?")
    check.add_argument(
        "--verify-exploration",
        action="store_true",
        help="play --task twice; exit code 0: replies differ, 1: a run failed, 2: no difference, "
        "3: the record lacks the temperature",
    )
    check.add_argument("--task", help="id of the task to play")
    check.add_argument("--temperature-a", type=float, help="default: 0.0")
    check.add_argument("--temperature-b", type=float, help="default: 0.7")
    check.add_argument("--compare-steps", type=positive, help="steps to compare (default: 10)")
    return parser


def settings_from(args: argparse.Namespace) -> CollectSettings:
    from practicum.collector import CollectSettings

    return CollectSettings(
        **rollout_fields(args),
        rollouts_per_task=args.rollouts_per_task,
        task_seed=args.task_seed,
        out=args.out,
        experiment=args.experiment or "collect",
        run_id=args.run_id,
        watch=args.watch,
    )


def verify(args: argparse.Namespace) -> int:
    """One task at two temperatures; the exit code is the finding."""
    if args.task is None:
        raise UserError("Say which task to run: --task ID.")
    if args.temperature is not None:
        raise UserError("--verify-exploration takes --temperature-a and --temperature-b, not --temperature.")
    from practicum.evaluation.temperature_check import verify_exploration

    temperatures = (
        0.0 if args.temperature_a is None else args.temperature_a,
        0.7 if args.temperature_b is None else args.temperature_b,
    )
    check = verify_exploration(settings_from(args), args.task, temperatures, args.compare_steps or 10)
    say(f"{check.replies.sentence}; episodes in {check.folder}")
    return int(check.replies.status)
