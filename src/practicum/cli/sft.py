"""`practicum sft`: imitate the episodes in a folder."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from practicum.cli.options import positive


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum sft", description=__doc__)
    parser.add_argument("--episodes", type=Path, required=True, help="folder written by `practicum collect`")
    parser.add_argument("--model", default="tiny", help="what to start from: tiny, smollm2, a folder, a hub id")
    parser.add_argument("--out", type=Path, required=True, help="folder for the trained model")
    parser.add_argument("--epochs", type=positive, default=1)
    parser.add_argument("--batch-size", type=positive, default=8)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--include-failed", action="store_true", help="imitate failed episodes too")
    args = parser.parse_args(argv)

    from practicum import store
    from practicum.errors import UserError
    from practicum.metrics import MetricsFile
    from practicum.models import loader
    from practicum.progress import Progress
    from practicum.training.apprentice import Apprentice
    from practicum.training.samples import imitation_samples
    from practicum.training.sft import SFTSettings, imitate, planned_steps
    from practicum.trajectory import Outcome

    if not args.episodes.is_dir():
        raise UserError(f"There is no folder '{args.episodes}'; make one with `practicum collect`.")
    episodes = [e for e in store.read_episodes(args.episodes) if args.include_failed or e.outcome is Outcome.SUCCESS]
    if not episodes:
        raise UserError(f"No successful episode below '{args.episodes}'; collect some, or give --include-failed.")
    templates = {episode.provenance.get("template") for episode in episodes}
    if len(templates) > 1:
        raise UserError(
            f"These episodes were rendered under different chat templates ({templates}); train on one kind."
        )
    apprentice = Apprentice(loader.load(args.model), templates.pop())
    vocabulary = loader.tokenizer_hash(apprentice.loaded.tokenizer)
    for episode in episodes:
        if episode.provenance.get("tokenizer", vocabulary) != vocabulary:
            raise UserError(
                f"Episode '{episode.task.id}' holds tokens of '{episode.provenance.get('model')}', "
                f"not of '{args.model}'; "
                f"collect again with --tokenizer {args.model}."
            )
    settings = SFTSettings(args.epochs, args.batch_size, args.lr, args.warmup, seed=args.seed)
    metrics = MetricsFile(args.out / "metrics.jsonl")
    last: dict[str, float] = {}
    with Progress("sft", planned_steps(len(imitation_samples(episodes)), settings), "steps") as progress:

        def heard(step: int, total: int, values: dict[str, float]) -> None:
            last.update(values)
            metrics.write(step, values)
            progress.advance(1, f"loss {values['actor/loss']:.3f}")

        asyncio.run(imitate(apprentice, episodes, settings, heard))
    metrics.close()
    apprentice.save(args.out / "model")
    asyncio.run(apprentice.close())
    print(f"trained on {len(episodes)} episodes; last loss {last['actor/loss']:.4f}; model in {args.out / 'model'}")
    return 0
