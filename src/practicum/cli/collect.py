"""`practicum collect`: rollouts of any policy into a folder of episodes; run again, it goes on where it stopped."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.cli.options import (
    add_policy_flags,
    add_world_flags,
    check_temperature,
    either_spelling,
    environment_options,
    place_settings,
    positive,
    sampling_of,
    workbench_of,
)
from practicum.errors import UserError

if TYPE_CHECKING:
    from practicum.data.collection import Collection
    from practicum.environment import Environment
    from practicum.rollout import Attempt
    from practicum.task import Task

ONLY_EXPLORING = ("task", "temperature_a", "temperature_b", "compare_steps")


def run(argv: list[str]) -> int:
    args = make_parser().parse_args(either_spelling(argv))
    if args.verify_exploration:
        try:
            return asyncio.run(verify(args))
        except UserError as error:  # 2 would say that nothing diverged
            print(f"practicum: {error}", file=sys.stderr)
            return 1
    for name in ONLY_EXPLORING:
        if vars(args)[name] is not None:
            raise UserError(f"--{name.replace('_', '-')} goes with --verify-exploration.")
    return asyncio.run(collect(args))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="practicum collect", description=__doc__, epilog="Words of a flag may be joined by - or _ alike."
    )
    add_world_flags(parser)
    add_policy_flags(parser)
    parser.set_defaults(tasks=None)
    parser.add_argument("--rollouts-per-task", type=positive, default=1)
    parser.add_argument("--task-seed", type=int, default=0, help="seed of the world: this + 1000 × task + rollout")
    parser.add_argument("--sample-size", type=positive, help="draw so many tasks of the split or registry by --seed")
    parser.add_argument("--subset", help="only tasks of an environment, site, level or FIELD=VALUE, or these ids: a,b")
    parser.add_argument("--task-registry", type=Path, help="JSON file of the tasks to play")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--experiment", default="collect")
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


async def collect(args: argparse.Namespace) -> int:
    from practicum.data import store
    from practicum.rollout import run_episodes
    from practicum.trajectory import Trajectory
    from practicum.utils.console import ConsoleEpisodeWatcher
    from practicum.utils.progress import Progress

    run = planned_collection(args)
    rows = run.kept()
    missing = [attempt for attempt in run.planned if run.path(attempt) not in rows]
    if missing:
        bench = workbench_of(args, 1.0)
        counts = Counter(row["outcome"] for row in rows.values())
        try:
            with Progress(f"collect {args.policy}"[:22], len(missing), "episodes") as progress:

                def keep(episode: Trajectory) -> None:
                    path = store.write_episode(run.folder, episode)
                    rows[path] = run.row(path, episode)
                    counts[episode.outcome.value] += 1
                    progress.advance(1, said(counts))

                await run_episodes(
                    missing,
                    bench.make_environment,
                    bench.agent,
                    bench.engine,
                    bench.renderer,
                    concurrency=args.concurrency,
                    provenance={**bench.provenance, "policy": args.policy, "collect": run.hash},
                    on_done=keep,
                    watcher=ConsoleEpisodeWatcher(bench.renderer) if args.watch else None,
                )
        finally:
            await bench.engine.close()
    run.finish(rows)
    return report(run, list(rows.values()), len(missing))


def planned_collection(args: argparse.Namespace) -> Collection:
    """What the flags ask for, before any model is loaded."""
    from practicum.data import collection
    from practicum.data.tasks import registry_hash

    world = make_world(args)
    tasks = chosen_tasks(args, world)
    if args.sample_size is not None and len(tasks) < args.sample_size:
        print(f"--sample_size {args.sample_size}: there are {len(tasks)} such tasks, so all of them are played")
    sampling = sampling_of(args, 1.0)
    options = environment_options(args)
    options.pop("files", None)  # the tasks that were read say more than the file's name
    settings = {
        "environment": args.env,
        "options": options,
        "format": args.format,
        "split": args.split,
        "subset": args.subset,
        "sample_size": args.sample_size,
        "tasks": registry_hash(tasks),
        "policy": policy_name(args),
        "url": args.url,
        "tokenizer": args.tokenizer,
        "template": args.template,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "max_turns": args.max_turns,
        "rollouts_per_task": args.rollouts_per_task,
        "seed": args.seed,
        "task_seed": args.task_seed,
        **place_settings(args),
    }
    planned = collection.plan(tasks, args.rollouts_per_task, args.seed, args.task_seed)
    folder = run_folder(args, f"{args.env}-{args.policy.strip('/.~')}-{args.split}-seed{args.seed}")
    about = {
        "run_id": folder.name,
        "experiment": args.experiment,
        "mode": mode_of(args),
        "policy": args.policy,
        "subset": args.subset,
        "max_turns": args.max_turns,
    }
    return collection.Collection(folder, planned, settings, about)


def report(run: Collection, rows: list[dict[str, Any]], played: int) -> int:
    """The last line, and the exit code: 1 where no episode could be scored."""
    from practicum.trajectory import Outcome
    from practicum.utils.tables import printable

    rewards = [row["reward"] for row in rows if Outcome(row["outcome"]).scored]
    mean = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "none scored"
    before = f" ({len(rows) - played} of them from before)" if played < len(rows) else ""
    outcomes = said(Counter(row["outcome"] for row in rows))
    failed = next((row for row in rows if not Outcome(row["outcome"]).scored), None)
    if failed is not None:
        mean += f"; first: {' '.join(printable(failed.get('error') or 'it gave no reason').split())[:300]}"
    print(f"{len(rows)} episodes in {run.folder}{before}: {outcomes}; {mean}")
    return 0 if rewards else 1


async def verify(args: argparse.Namespace) -> int:
    """One task at two temperatures, kept on disk; the exit code is the finding."""
    from practicum.data import store
    from practicum.evaluation import temperature_check

    if args.task is None:
        raise UserError("Say which task to play: --task ID.")
    if args.temperature is not None:
        raise UserError("--verify-exploration takes --temperature-a and --temperature-b, not --temperature.")
    first = 0.0 if args.temperature_a is None else args.temperature_a
    second = 0.7 if args.temperature_b is None else args.temperature_b
    check_temperature("--temperature-a", first)
    check_temperature("--temperature-b", second)
    attempt = attempt_at(args, args.task)
    bench = workbench_of(args, first)
    try:
        played = await temperature_check.play(bench, attempt, (first, second), args.policy)
    finally:
        await bench.engine.close()
    folder = run_folder(args, f"verify-{args.env}-{args.policy.strip('/.~')}-seed{args.task_seed}")
    kept = [store.read_episode(store.write_episode(folder, episode)) for episode in played]
    verdict = temperature_check.compare(kept, (first, second), args.compare_steps or 10)
    print(f"{verdict.sentence}; episodes in {folder}")
    return int(verdict.finding)


def attempt_at(args: argparse.Namespace, name: str) -> Attempt:
    """The first attempt at a task of the registry or the environment."""
    from practicum.data import collection
    from practicum.data.tasks import find_tasks

    world = make_world(args)
    if args.task_registry is not None:
        found = {task.id: task for task in chosen_tasks(args, world)}
    else:
        found = find_tasks(world, [name], args.split, args.seed)
    if name not in found:
        raise UserError(f"Environment '{args.env}' has no '{args.split}' task '{name}'; check --split and --seed.")
    return collection.plan([found[name]], 1, args.seed, args.task_seed)[0]


def make_world(args: argparse.Namespace) -> Environment:
    from practicum.registry import environment_maker

    return environment_maker(args.env, args.format, environment_options(args))[0]()


def chosen_tasks(args: argparse.Namespace, world: Environment) -> list[Task]:
    from practicum.data.tasks import read_registry, select

    registry = None if args.task_registry is None else read_registry(args.task_registry, world.name, args.split)
    return select(
        world,
        split=args.split,
        seed=args.seed,
        count=args.tasks,
        sample_size=args.sample_size,
        subset=args.subset,
        registry=registry,
    )


def policy_name(args: argparse.Namespace) -> str:
    """The policy, and where it is a folder its content: a model trained again under the same name is another."""
    from practicum.data.collection import files_hash

    folder = Path(args.policy).expanduser()
    return f"{args.policy}@{files_hash(folder)}" if args.url is None and folder.is_dir() else args.policy


def mode_of(args: argparse.Namespace) -> str:
    if args.url is not None:
        return "server"
    return args.policy if args.policy in ("expert", "random", "null") else "model"


def run_folder(args: argparse.Namespace, name: str) -> Path:
    folder: Path = args.out / args.experiment / (args.run_id or re.sub(r"[^A-Za-z0-9_.-]+", "_", name))
    return folder


def said(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
