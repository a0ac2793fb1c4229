"""`practicum eval`: score a policy on a frozen panel, with intervals; run again, it continues where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from practicum.cli.options import (
    HelpFormatter,
    add_environment_flags,
    add_policy_flags,
    normalize_flags,
    positive,
    print_warnings,
    rollout_fields,
)
from practicum.errors import UserError
from practicum.utils.terminal import ArgumentParser

if TYPE_CHECKING:
    from practicum.evaluation.result import EvalResult
    from practicum.evaluation.runner import EvalRunner
    from practicum.evaluation.settings import EvalSettings


def run(argv: list[str]) -> int:
    """Exit code 1: in one of the environments nothing could be scored."""
    settings = parse_settings(argv)
    from practicum.cli.modes import explained_url
    from practicum.evaluation.result_table import describe_all
    from practicum.evaluation.runner import evaluate_all

    with explained_url(argv):
        results = evaluate_all(settings, on_result=print_result)
    if len(results) > 1:
        print("\n".join(["", *describe_all(results, settings[0])]))
    return 0 if all(result.scored for result in results) else 1


def parse_settings(argv: list[str]) -> list[EvalSettings]:
    """The settings that the flags ask for, one per environment."""
    environments, rest = split_environments(expand_mode(normalize_flags(argv)))
    if not environments and not {"-h", "--help"} & set(rest):
        make_parser().refuse_unknown_options(rest)
        raise UserError("Say which environment to evaluate in: --env NAME; `practicum envs` lists them.")
    args = make_parser().parse_args([*(["--env", environments[0]] if environments else []), *rest])
    from practicum.evaluation.settings import EvalSettings, settings_by_environment

    settings = EvalSettings(
        **rollout_fields(args),
        panel=args.panel,
        attempts_per_task=args.attempts,
        base=args.base,
        name=args.name,
        level=args.level,
        out=args.out,
    )
    return settings_by_environment(settings, environments)


def expand_mode(argv: list[str]) -> list[str]:
    """The arguments with the flags of --mode or --experiment, if one is named, in front of them."""
    parser = mode_parser()
    options, typed = parser.parse_known_args(argv)
    if options.mode is None and options.experiment is None:
        if options.config is not None:
            raise UserError("--config is a file of experiments: name one with --experiment or --mode.")
        return argv
    from practicum.cli.modes import named_modes, read_modes, typed_over, with_subset

    if options.mode is not None and options.experiment is not None:
        raise UserError("--mode and --experiment each name what to evaluate; give one.")
    (mode,) = (
        named_modes([options.mode], options.config)
        if options.mode is not None
        else read_modes(options.config, [options.experiment])
    )
    flags = typed_over(mode, with_subset(options.config, typed))
    return ["--name", mode.name, "--out", f"results/{mode.name}.json", *flags]


def mode_parser() -> ArgumentParser:
    """The flags that name a mode; they set other flags."""
    parser = ArgumentParser(prog="practicum eval", add_help=False, allow_abbrev=False)
    group = parser.add_argument_group("modes")
    group.add_argument("--mode", help="an experiment by name, or NAME=POLICY; the result goes to results/NAME.json")
    group.add_argument("--experiment", help="an experiment of --config")
    group.add_argument("--config", type=Path, help="file of experiments (default: configs/experiments.yaml)")
    return parser


def split_environments(argv: list[str]) -> tuple[list[str], list[str]]:
    """The environments that --env names, each once, and all other arguments."""
    parser = ArgumentParser(prog="practicum eval", add_help=False, allow_abbrev=False)
    parser.add_argument("--env", action="append", default=[])
    options, rest = parser.parse_known_args(argv)
    return list(dict.fromkeys(options.env)), rest


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="practicum eval",
        parents=[mode_parser()],
        description=__doc__,
        formatter_class=HelpFormatter,
        epilog="example: practicum eval --env math --policy runs/sft --tasks 300 --out sft.json\n"
        "A --policy folder may be a model, an adapter, or a run's folder: its RL model is evaluated, or else "
        "its DPO, SFT or base model. --env may be given several times: --out is then a folder, which `practicum "
        "compare` takes for one policy. Words of a flag may be joined by - or _ alike.",
    )
    add_environment_flags(parser)
    add_policy_flags(parser)
    parser.set_defaults(split="test", tasks=None)
    parser.add_argument(
        "--panel", type=Path, help="a frozen panel (OUT.run/panel.json of another result, or its folder)"
    )
    parser.add_argument("--sample-size", type=positive, help="draw this many tasks of the split or registry by --seed")
    parser.add_argument("--subset", help="only tasks of an environment, site, level or FIELD=VALUE, or these ids: a,b")
    parser.add_argument("--task-registry", type=Path, help="JSON file of the tasks to evaluate on")
    parser.add_argument("-k", "--attempts", type=positive, default=1, help="attempts per task: mean@k and pass@k")
    parser.add_argument("--base", help="the base model of an adapter, where the adapter's folder does not name it")
    parser.add_argument("--name", help="the policy's name in tables (default: --policy)")
    parser.add_argument("--level", type=float, default=0.95, help="level of the intervals (default: 0.95)")
    parser.add_argument("--out", type=Path, help="write the result here (FILE.json; episodes go into FILE.run/)")
    return parser


def print_result(runner: EvalRunner, result: EvalResult) -> None:
    from practicum.evaluation.result_table import describe

    print(describe(runner, result))
    warnings = runner.warnings()
    if warnings:
        print_warnings(warnings)
