"""`practicum train KEY=VALUE ...`: reinforcement learning; `recipe=NAME` loads an experiment, `--dry-run` shows it."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from practicum.config import TrainConfig


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum train", description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved configuration and what follows from it"
    )
    args = parser.parse_intermixed_args(argv)

    from practicum import config as configuration
    from practicum import overrides

    config = configuration.resolve(args.overrides)
    if args.dry_run:
        from practicum import experiment

        lines = experiment.derived(config)
        print(overrides.show(config), end="")
        print("# derived")
        print("\n".join(f"# {line}" for line in lines))
        return 0
    return asyncio.run(train(config))


async def train(config: TrainConfig) -> int:
    from practicum import experiment
    from practicum.progress import Progress

    episodes = config.data.train_batch_size * config.agent.num_chains
    progress = Progress("train", 0, "episodes")

    def stepped(step: int, values: dict[str, float]) -> None:
        progress.note = f"step {step}: reward {values.get('reward/mean', float('nan')):.3f}"

    run = experiment.build_run(config, on_step=stepped, on_episode=lambda episode: progress.advance())
    try:
        progress.total = run.settings.steps * episodes
        progress.done = run.standing.step * episodes
        with progress:
            standing = await run.go()
        run.apprentice.save(run.folder / "model")
    finally:
        await run.apprentice.close()
    best = f"; best validation at step {standing.best_step}" if standing.best_step is not None else ""
    print(f"{standing.step} steps{best}; metrics in {run.folder / 'metrics.jsonl'}, model in {run.folder / 'model'}")
    return 0
