"""`practicum eval`: score a policy on a held-out panel, with intervals."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from practicum.cli.options import add_policy_flags, add_world_flags, workbench_of


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum eval", description=__doc__)
    add_world_flags(parser)
    add_policy_flags(parser)
    parser.add_argument("--out", type=Path, help="write the result as JSON here")
    parser.set_defaults(split="test", tasks=300)
    args = parser.parse_args(argv)
    return asyncio.run(evaluate(args))


async def evaluate(args: argparse.Namespace) -> int:
    from practicum.evaluation.panel import Panel, score
    from practicum.progress import Progress
    from practicum.rollout import run_episodes
    from practicum.store import write_atomic
    from practicum.trajectory import Trajectory

    bench = workbench_of(args, 0.0)
    panel = Panel(tuple(bench.environment.tasks(args.split, args.tasks)), args.seed)
    try:
        with Progress(f"eval {args.policy}"[:22], len(panel.tasks), "episodes") as progress:

            def heard(episode: Trajectory) -> None:
                progress.advance()

            episodes = await run_episodes(
                panel.attempts(),
                bench.make_environment,
                bench.agent,
                bench.engine,
                bench.renderer,
                concurrency=args.concurrency,
                retries=1,
                on_done=heard,
            )
    finally:
        await bench.engine.close()
    result = score(args.policy, panel, episodes)
    interval = result.interval()
    if args.out is not None:
        record = {"policy": args.policy, "environment": args.env, "panel": panel.hash, **result.record(),
                  "successes": result.successes, "rewards": result.rewards, "unscored": result.errors}  # fmt: skip
        write_atomic(args.out, (json.dumps(record, indent=1) + "\n").encode())
    print(
        f"{args.policy} on {args.env} ({args.split}, panel {panel.hash}): success {result.success_rate:.1%} "
        f"[{interval.low:.1%}, {interval.high:.1%}] (95 %), n = {result.count}, not scored {len(result.errors)}"
    )
    return 0 if result.count else 1
