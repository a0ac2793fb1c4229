"""`practicum eval`: score a policy on a frozen panel, with intervals; run again, it continues where it stopped."""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from practicum.cli.options import (
    add_environment_flags,
    add_policy_flags,
    normalize_flags,
    positive,
    rollout_fields,
)

if TYPE_CHECKING:
    from practicum.evaluation.result import EvalResult
    from practicum.evaluation.runner import EvalRunner
    from practicum.evaluation.settings import EvalSettings


def run(argv: list[str]) -> int:
    """Exit code 1: in one of the environments nothing could be scored."""
    settings = parse_settings(argv)
    from practicum.evaluation.runner import evaluate_all

    results = evaluate_all(settings, on_result=print_result)
    if len(results) > 1:
        print("\n".join(["", *describe_all(results, settings[0])]))
    return 0 if all(result.scored for result in results) else 1


def parse_settings(argv: list[str]) -> list[EvalSettings]:
    """The settings that the flags ask for, one per environment."""
    environments, rest = split_environments(normalize_flags(argv))
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


def split_environments(argv: list[str]) -> tuple[list[str], list[str]]:
    """The environments that --env names, each once, and all other arguments."""
    parser = argparse.ArgumentParser(prog="practicum eval", add_help=False, allow_abbrev=False)
    parser.add_argument("--env", action="append", default=[])
    known, rest = parser.parse_known_args(argv)
    return list(dict.fromkeys(known.env)), rest


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="practicum eval",
        description=__doc__,
        epilog="A --policy folder may be a model, an adapter, or a run's folder: its RL model is evaluated, or else "
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
    parser.add_argument("--level", type=float, default=0.8, help="level of the intervals (default: 0.8)")
    parser.add_argument("--out", type=Path, help="write the result here (FILE.json; episodes go into FILE.run/)")
    return parser


def print_result(runner: EvalRunner, result: EvalResult) -> None:
    print(describe(runner, result))


def describe(runner: EvalRunner, result: EvalResult) -> str:
    """The table of one result and its last line."""
    from practicum.utils.tables import number, percent, printable, shortened, table

    settings, policy = runner.settings, runner.policy
    metrics, interval = result.metrics(settings.level), result.interval(settings.level)
    level = f"{100 * settings.level:g} %"
    rows = [
        ("Success rate", percent(metrics["success_rate"]), f"[{percent(interval.low)}, {percent(interval.high)}]"),
        ("Accuracy (score > 0.5)", percent(metrics["accuracy"]), ""),
        ("Non-zero scores", percent(metrics["positive_rate"]), ""),
        ("Mean score", number(metrics["mean_reward"]), f"[{number(metrics['reward_low'])}, "
         f"{number(metrics['reward_high'])}]"),
        ("Standard deviation", number(metrics["std_reward"]), ""),
        ("Median score", number(metrics["median_reward"]), ""),
        ("Mean / median turns", f"{number(metrics['mean_turns'])} / {number(metrics['median_turns'])}", ""),
        ("Unusable replies", percent(metrics["invalid_reply_rate"]), ""),
    ]  # fmt: skip
    rows += [(name, percent(value), "") for name, value in metrics.items() if name.startswith("pass@")]
    rows += [(name, number(value), "") for name, value in metrics.items() if name.startswith(("part/", "figure/"))]
    found = f" (found {policy.stage}: {shortened(policy.name, 32)})" if policy.name != settings.policy else ""
    each = f" × {result.attempts_per_task} attempts" if result.attempts_per_task > 1 else ""
    name = shortened(printable(result.policy), 32)
    head = f"{name}{found} on {settings.environment}: {result.num_tasks} {settings.split} tasks{each}"
    rate = "nothing scored" if not result.scored else (
        f"success {percent(result.success_rate)} [{percent(interval.low)}, {percent(interval.high)}] ({level})"
    )  # fmt: skip
    last = f"panel {result.panel}: {rate}, n = {len(result.scored)}, not scored {len(result.unscored)}"
    lines = [head, table(["Metric", "Value", f"{level} interval"], rows), last]
    lines += describe_unscored(result, settings)
    if settings.out is not None:
        lines.append(f"result in {settings.out}, episodes and panel in {settings.run_folder}")
    return "\n".join(lines)


def describe_unscored(result: EvalResult, settings: EvalSettings) -> list[str]:
    """Why attempts were not scored, the first error, and what helps."""
    from practicum.utils.tables import WIDTH, printable

    if not result.unscored:
        return []
    outcomes = Counter(attempt.outcome.value for attempt in result.unscored)
    first = " ".join(printable(result.unscored[0].error or "it gave no reason").split())
    lines = [f"not scored: {', '.join(f'{count} {name}' for name, count in outcomes.most_common())}"]
    lines += textwrap.wrap(f"first: {first[:300]}", WIDTH)
    return [*lines, *(["the same command again runs these, and only these"] if settings.out is not None else [])]


def describe_all(results: list[EvalResult], settings: EvalSettings) -> list[str]:
    """One line per environment, and the mean over environments: each counts once, however many tasks it has."""
    from practicum.evaluation.multi_environment import aggregate
    from practicum.utils.tables import number, percent, table

    rows = []
    for result in results:
        metrics = result.metrics(settings.level)
        low, high = percent(metrics["success_low"]), percent(metrics["success_high"])
        rows.append([
            result.environment, f"{percent(metrics['success_rate'])} [{low}, {high}]", number(metrics["mean_reward"]),
            str(len(result.scored)), str(len(result.unscored)), result.panel,
        ])  # fmt: skip
    headers = ["Environment", f"Success [{100 * settings.level:g} %]", "Score", "n", "Not scored", "Panel"]
    lines = [table(headers, rows)]
    if all(result.scored for result in results):
        total = aggregate(results)
        lines.append(
            f"overall: success {percent(total.overall_success_rate)} (mean of environments), accuracy "
            f"{percent(total.weighted_accuracy)} and score {number(total.weighted_mean_score)} (weighted by tasks)"
        )
    return [*lines, *([f"results in {Path(settings.out).parent}"] if settings.out is not None else [])]
