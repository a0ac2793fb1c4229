"""`practicum quickstart`: watch a small language model become a better agent, on two CPU cores, in minutes."""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

from practicum.errors import UserError
from practicum.utils.terminal import ArgumentParser, say


def run(argv: list[str]) -> int:
    parser = ArgumentParser(prog="practicum quickstart", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the tasks, their order and the sampling")
    parser.add_argument(
        "--out", type=Path, default=None, help="folder for everything it writes (default: runs/quickstart-SEED)"
    )
    parser.add_argument(
        "--demonstrations", type=int, default=200, help="demonstrations of the expert for SFT (default: 200)"
    )
    parser.add_argument("--sft-only", action="store_true", help="stop after SFT and its evaluation")
    args = parser.parse_args(argv)
    if args.demonstrations < 8:
        raise UserError(f"--demonstrations {args.demonstrations}: SFT needs at least 8.")
    print("Practicum quickstart: demonstrations → SFT → GRPO → evaluation", flush=True)

    from practicum.utils.terminal import Progress

    with Progress("load torch", 1) as progress:
        from practicum.quickstart import Quickstart, default_plan

        progress.advance()
    out = args.out or free_folder(Path("runs") / f"quickstart-{args.seed}")
    plan = default_plan(args.seed, args.demonstrations)
    quick = Quickstart(out, args.seed, plan, say=say, sft_only=args.sft_only)
    try:
        asyncio.run(quick.run())
    except KeyboardInterrupt:
        print("\npracticum: stopped; the same command begins again.", file=sys.stderr)
        return 130
    return 0


def free_folder(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, ... that holds no finished quickstart."""
    for attempt in itertools.count(1):
        candidate = folder if attempt == 1 else folder.with_name(f"{folder.name}-{attempt}")
        if not (candidate / "summary.json").is_file():
            return candidate
    raise AssertionError("unreachable")
