"""`practicum eval`: score a policy on a frozen panel, with intervals; run again, it goes on where it stopped."""

from __future__ import annotations

import argparse
import asyncio
import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from practicum.cli.options import (
    add_environment_flags,
    add_policy_flags,
    normalize_flags,
    positive,
    rollout_settings,
)
from practicum.errors import UserError

if TYPE_CHECKING:
    from practicum.data.collection import Collection
    from practicum.evaluation.panel import Panel
    from practicum.evaluation.policy_ref import PolicyRef
    from practicum.evaluation.result import EvalResult
    from practicum.evaluation.runner import EvalRunner

TASKS = 300


class Planned(NamedTuple):
    """An examination that could begin."""

    args: argparse.Namespace
    examinee: PolicyRef
    room: EvalRunner


def run(argv: list[str]) -> int:
    return sit(planned(argv))


def planned(argv: list[str]) -> list[Planned]:
    """What the words ask for, an environment each; all of it is looked up before anything is played."""
    worlds, rest = named_worlds(normalize_flags(argv))
    parser = make_parser()
    sittings = [parser.parse_args(["--env", world, *rest]) for world in worlds] or [parser.parse_args(rest)]
    for args in sittings:
        check(args, len(sittings) > 1)
    return [prepare(args) for args in sittings]


def sit(sittings: list[Planned]) -> int:
    """Examine one after the other; 1 where one of them could not be scored at all."""
    found = [asyncio.run(examine(sitting)) for sitting in sittings]
    if len(found) > 1:
        print("\n".join(["", *overall(found, sittings[0].args)]))
    return 0 if all(examination.scored for examination in found) else 1


def named_worlds(argv: list[str]) -> tuple[list[str], list[str]]:
    """The environments that --env names, each once, and all other words."""
    parser = argparse.ArgumentParser(prog="practicum eval", add_help=False, allow_abbrev=False)
    parser.add_argument("--env", action="append", default=[])
    found, rest = parser.parse_known_args(argv)
    return list(dict.fromkeys(found.env)), rest


def check(args: argparse.Namespace, several: bool) -> None:
    """What is wrong with the flags; where there are several environments, where each one's files are."""
    if not 0 < args.level < 1:
        raise UserError(f"--level {args.level:g}: a level lies between 0 and 1, such as 0.8.")
    if several:
        if args.out is not None and (args.out.suffix == ".json" or args.out.is_file()):
            raise UserError(f"--out {args.out}: several environments give a folder of results; name a folder.")
        if args.panel is not None and not args.panel.is_dir():
            raise UserError(f"--panel {args.panel}: for several environments, name the folder of another --out.")
    elif args.out is not None and args.out.suffix != ".json":
        raise UserError(f"--out {args.out}: a result is one JSON file; give it a name that ends in .json.")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", args.env)
    if args.panel is not None and args.panel.is_dir():
        args.panel = args.panel / f"{name}.run" / "panel.json"
    if several and args.out is not None:
        args.out = args.out / f"{name}.json"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="practicum eval",
        description=__doc__,
        epilog="A --policy folder may be a model, an adapter, or a run's folder: its RL model is examined, or else its "
        "DPO, SFT or base model. --env may be given several times: --out is then a folder, which `practicum compare` "
        "takes for one policy. Words of a flag may be joined by - or _ alike.",
    )
    add_environment_flags(parser)
    add_policy_flags(parser)
    parser.set_defaults(split="test", tasks=None)
    parser.add_argument(
        "--panel", type=Path, help="a frozen panel (OUT.run/panel.json of another result, or its folder)"
    )
    parser.add_argument("--sample-size", type=positive, help="draw so many tasks of the split or registry by --seed")
    parser.add_argument("--subset", help="only tasks of an environment, site, level or FIELD=VALUE, or these ids: a,b")
    parser.add_argument("--task-registry", type=Path, help="JSON file of the tasks to examine on")
    parser.add_argument("-k", "--attempts", type=positive, default=1, help="attempts at every task: mean@k and pass@k")
    parser.add_argument("--base", help="the model beneath an adapter, where the adapter's folder does not say")
    parser.add_argument("--name", help="what to call the policy in tables (default: --policy)")
    parser.add_argument("--level", type=float, default=0.8, help="level of the intervals (default: 0.8)")
    parser.add_argument("--out", type=Path, help="write the result here (FILE.json; episodes go into FILE.run/)")
    return parser


async def evaluate(args: argparse.Namespace) -> int:
    """One examination; the exit code is 1 where nothing could be scored."""
    return 0 if (await examine(prepare(args))).scored else 1


def prepare(args: argparse.Namespace) -> Planned:
    from practicum.evaluation import policy_ref as examinees
    from practicum.evaluation.runner import EvalRunner

    examinee = examinees.find(args.policy, args.url, args.base)
    panel = chosen_panel(args)
    room = EvalRunner(args.name or args.policy, args.env, panel, args.attempts, settings_of(args, examinee, panel))
    return Planned(args, examinee, room)


def check_examinee(sitting: Planned) -> None:
    """Whether the server, or the model's tokenizer, is there: known without loading a model."""
    from practicum.evaluation.server_check import check_server
    from practicum.models import loader

    args, examinee, _ = sitting
    if args.url is not None:
        check_server(args.url, examinee.name)
    loader.load_tokenizer(args.tokenizer if examinee.stage in ("server", "scripted") else examinee.model)


async def examine(sitting: Planned) -> EvalResult:
    args, examinee, room = sitting
    kept = None if args.out is None else kept_episodes(args.out, room)
    if room.recall(kept):
        await play(args, examinee, room, kept)
    examination = room.examination()
    if kept is not None:
        kept.finish(room.rows())
        room.panel.write(run_folder(args.out) / "panel.json")
        examination.write(args.out, args.level)
    print(described(examination, args, examinee))
    return examination


def chosen_panel(args: argparse.Namespace) -> Panel:
    """The panel of a file, or one made of the tasks that the flags choose."""
    from practicum.cli.options import environment_options
    from practicum.evaluation.panel import Panel, read_panel

    options = environment_options(args)
    options.pop("files", None)  # the tasks that were read say more than the file's name
    rules = {"max_turns": args.max_turns, **({"options": options} if options else {})}
    if args.panel is None:
        if args.tasks is None and args.task_registry is None and args.sample_size is None:
            args.tasks = TASKS
        settings = rollout_settings(args)
        return Panel(tuple(settings.select_tasks(settings.make_environment())), args.seed, rules)
    for flag in ("tasks", "sample_size", "subset", "task_registry", "data"):
        if vars(args)[flag] is not None:
            raise UserError(f"--panel says which tasks there are; leave --{flag.replace('_', '-')} out.")
    panel = read_panel(args.panel)
    args.seed = panel.seed
    worlds = sorted({task.environment for task in panel.tasks})
    if worlds != [rollout_settings(args).make_environment().name]:
        raise UserError(f"Panel '{args.panel}' is of {', '.join(worlds)}; --env {args.env} cannot play it.")
    if dict(panel.rules) != rules:
        raise UserError(
            f"Panel '{args.panel}' is played under the rules {dict(panel.rules)}, not {rules}; give --max-turns, "
            "--env-arg, --tools and --reward as there."
        )
    return panel


def settings_of(args: argparse.Namespace, examinee: PolicyRef, panel: Panel) -> dict[str, Any]:
    """What a result depends on besides the panel; another answer to any of these is another examination."""
    from practicum.rollout_settings import policy_identity

    sampling = rollout_settings(args).sampling(default_temperature(args))
    return {
        "policy": policy_identity(examinee.name, args.url),
        "stage": examinee.stage,
        **({"base": examinee.model} if examinee.adapter else {}),
        **({"run": examinee.run} if examinee.run else {}),
        **({"url": args.url} if args.url else {}),
        "panel": panel.hash,
        "seed": panel.seed,
        "rules": dict(panel.rules),
        "format": args.format,
        "template": args.template,
        "tokenizer": args.tokenizer,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        **rollout_settings(args).device_record(),
    }


def default_temperature(args: argparse.Namespace) -> float:
    """Greedy for one attempt; several would all be the same, so they are sampled."""
    return 0.0 if args.attempts == 1 else 1.0


def run_folder(out: Path) -> Path:
    return out.with_name(f"{out.stem}.run")


def kept_episodes(out: Path, room: EvalRunner) -> Collection:
    from practicum.data.collection import Collection

    about = {"run_id": out.stem, "experiment": "eval", "mode": room.settings["stage"], "policy": room.policy}
    return Collection(run_folder(out) / "episodes", room.planned, room.settings, about)


async def play(args: argparse.Namespace, examinee: PolicyRef, room: EvalRunner, kept: Collection | None) -> None:
    """The attempts that are not there yet."""
    from practicum.cli.options import environment_options
    from practicum.evaluation.policy_ref import make_bench
    from practicum.evaluation.server_check import check_server
    from practicum.rollout import run_episodes
    from practicum.trajectory import Trajectory
    from practicum.utils.progress import Progress

    if args.url is not None:
        check_server(args.url, examinee.name)
    bench = make_bench(
        examinee,
        args.env,
        format=args.format,
        options=environment_options(args),
        sampling=rollout_settings(args).sampling(default_temperature(args)),
        max_turns=args.max_turns,
        template=args.template,
        tokenizer=args.tokenizer,
        url=args.url,
        where=rollout_settings(args).find_device(),
    )
    missing = room.missing()
    provenance = {**bench.provenance, "policy": args.policy, "panel": room.panel.hash}
    if kept is not None:
        provenance["collect"] = kept.hash
    try:
        with Progress(f"eval {room.policy}"[:22], len(missing), "episodes") as progress:

            def heard(episode: Trajectory) -> None:
                room.seat(episode, kept)
                progress.advance()

            await run_episodes(
                missing,
                room.timed(bench.make_environment),
                bench.agent,
                bench.engine,
                bench.renderer,
                concurrency=args.concurrency,
                retries=1,
                provenance=provenance,
                on_done=heard,
            )
    finally:
        await bench.engine.close()


def described(examination: EvalResult, args: argparse.Namespace, examinee: PolicyRef) -> str:
    """The table of one examination and its last line."""
    from practicum.utils.tables import number, percent, printable, shortened, table

    metrics, interval = examination.metrics(args.level), examination.interval(args.level)
    level = f"{100 * args.level:g} %"
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
    found = f" (found {examinee.stage}: {shortened(examinee.name, 32)})" if examinee.name != args.policy else ""
    each = f" × {examination.attempts} attempts" if examination.attempts > 1 else ""
    who = shortened(printable(examination.policy), 32)
    head = f"{who}{found} on {args.env}: {examination.size} {args.split} tasks{each}"
    kept = [f"result in {args.out}, episodes and panel in {run_folder(args.out)}"] if args.out is not None else []
    rate = "nothing scored" if not examination.scored else (
        f"success {percent(examination.success_rate)} [{percent(interval.low)}, {percent(interval.high)}] ({level})"
    )  # fmt: skip
    last = f"panel {examination.panel}: {rate}, n = {len(examination.scored)}, not scored {len(examination.unscored)}"
    failed = unscored(examination, args)
    return "\n".join([head, table(["Metric", "Value", f"{level} interval"], rows), last, *failed, *kept])


def unscored(examination: EvalResult, args: argparse.Namespace) -> list[str]:
    """What kept attempts from being scored, the first of them in its own words, and what helps."""
    from practicum.utils.tables import WIDTH, printable

    if not examination.unscored:
        return []
    outcomes = Counter(sitting.outcome.value for sitting in examination.unscored)
    first = " ".join(printable(examination.unscored[0].error or "it gave no reason").split())
    lines = [f"not scored: {', '.join(f'{count} {name}' for name, count in outcomes.most_common())}"]
    lines += textwrap.wrap(f"first: {first[:300]}", WIDTH)
    return [*lines, *(["the same command again plays these, and only these"] if args.out is not None else [])]


def overall(found: list[EvalResult], args: argparse.Namespace) -> list[str]:
    """One line an environment, and the mean over environments: each counts once, however many tasks it has."""
    from practicum.evaluation.multi_environment import aggregate
    from practicum.utils.tables import number, percent, table

    rows = []
    for examination in found:
        metrics = examination.metrics(args.level)
        low, high = percent(metrics["success_low"]), percent(metrics["success_high"])
        rate = f"{percent(metrics['success_rate'])} [{low}, {high}]"
        rows.append([
            examination.environment, rate, number(metrics["mean_reward"]), str(len(examination.scored)),
            str(len(examination.unscored)), examination.panel,
        ])  # fmt: skip
    headers = ["Environment", f"Success [{100 * args.level:g} %]", "Score", "n", "Not scored", "Panel"]
    lines = [table(headers, rows)]
    if all(examination.scored for examination in found):
        whole = aggregate(found)
        lines.append(
            f"overall: success {percent(whole.overall_success_rate)} (mean of environments), accuracy "
            f"{percent(whole.weighted_accuracy)} and score {number(whole.weighted_mean_score)} (weighted by tasks)"
        )
    return [*lines, *([f"results in {args.out.parent}"] if args.out is not None else [])]
