"""`practicum collect`: rollouts of any policy into a folder of episodes."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections import Counter
from pathlib import Path

from practicum.cli.options import add_policy_flags, add_world_flags, positive, workbench_of
from practicum.errors import UserError


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum collect", description=__doc__)
    add_world_flags(parser)
    add_policy_flags(parser)
    parser.add_argument("--rollouts-per-task", type=positive, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--experiment", default="collect")
    parser.add_argument("--run-id", default=None, help="folder of this run (default: from the policy and the seed)")
    parser.add_argument("--watch", action="store_true", help="show the first episode as it happens")
    args = parser.parse_args(argv)
    return asyncio.run(collect(args))


async def collect(args: argparse.Namespace) -> int:
    from practicum import store
    from practicum.progress import Progress
    from practicum.rollout import attempts, run_episodes
    from practicum.trajectory import Trajectory
    from practicum.watching import ConsoleWatcher

    bench = workbench_of(args, 1.0)
    planned = attempts(bench.environment.tasks(args.split, args.tasks, args.seed), args.rollouts_per_task, args.seed)
    policy = re.sub(r"[^A-Za-z0-9_.-]+", "_", args.policy.strip("/.~"))
    world = re.sub(r"[^A-Za-z0-9_.-]+", "_", args.env)
    folder = args.out / args.experiment / (args.run_id or f"{world}-{policy}-{args.split}-seed{args.seed}")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"'{folder}' already holds episodes; choose another --run-id or --out.")
    outcomes: Counter[str] = Counter()
    rewards: list[float] = []
    try:
        with Progress(f"collect {args.policy}"[:22], len(planned), "episodes") as progress:

            def keep(episode: Trajectory) -> None:
                store.write_episode(folder, episode)
                outcomes[episode.outcome.value] += 1
                if episode.scored:
                    rewards.append(episode.reward)
                progress.advance(1, ", ".join(f"{n} {k}" for k, n in outcomes.most_common()))

            await run_episodes(
                planned,
                bench.make_environment,
                bench.agent,
                bench.engine,
                bench.renderer,
                concurrency=args.concurrency,
                provenance={**bench.provenance, "policy": args.policy},
                on_done=keep,
                watcher=ConsoleWatcher(bench.renderer) if args.watch else None,
            )
    finally:
        await bench.engine.close()
    mean = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "none scored"
    print(f"{len(planned)} episodes in {folder}: {', '.join(f'{n} {k}' for k, n in outcomes.most_common())}; {mean}")
    return 0 if rewards else 1
