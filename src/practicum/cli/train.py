"""`practicum train KEY=VALUE ...`: reinforcement learning; `recipe=NAME` loads an experiment, `--dry-run` shows it.

`--from-trajectories DIR` learns from episodes that were collected before instead of playing new ones.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from typing import TYPE_CHECKING

from practicum.cli.options import normalize_flags

if TYPE_CHECKING:
    from practicum.config.train import TrainConfig


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum train", description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved configuration and what follows from it"
    )
    parser.add_argument(
        "--from-trajectories", metavar="DIR", help="learn from the episodes below DIR (data.from_trajectories=DIR)"
    )
    args = parser.parse_intermixed_args(normalize_flags(argv))

    from practicum.config import overrides
    from practicum.config import train as configuration

    if args.from_trajectories is not None:
        args.overrides.append(f"data.from_trajectories={quoted(args.from_trajectories)}")
    config = configuration.resolve(args.overrides)
    if args.dry_run:
        from practicum.training import build

        lines = build.derived(config)
        print(overrides.show(config), end="")
        print("# derived")
        print("\n".join(f"# {line}" for line in lines))
        return 0
    return asyncio.run(train(config))


async def train(config: TrainConfig) -> int:
    from practicum.training import build
    from practicum.utils.progress import Progress

    played = config.data.from_trajectories is None or config.algorithm.offline.method == "bandit"
    each = config.data.train_batch_size * config.agent.num_chains if played else 1
    progress = Progress("train", 0, "episodes" if played else "steps")

    def stepped(step: int, values: dict[str, float]) -> None:
        if played:
            progress.note = f"step {step}: reward {values.get('reward/mean', float('nan')):.3f}"
        else:
            far = values.get("offline/distance/mean", float("nan"))
            progress.advance(1, f"loss {values.get('actor/loss', float('nan')):+.4f}, distance from the log {far:.3f}")

    run = build.build_run(config, on_step=stepped, on_episode=(lambda episode: progress.advance()) if played else None)
    try:
        progress.total = run.settings.steps * each
        progress.done = run.standing.step * each
        with progress:
            standing = await run.go()
        run.policy.save(run.folder / "model")
    finally:
        await run.policy.close()
    best = f"; best validation at step {standing.best_step}" if standing.best_step is not None else ""
    print(f"{standing.step} steps{best}; metrics in {run.folder / 'metrics.jsonl'}, model in {run.folder / 'model'}")
    return 0


def quoted(text: str) -> str:
    """A text as the override grammar reads it back: quotes escaped, and backslashes where they stand before one."""
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + (found[2] and "\\'"), text) + "'"
