"""`practicum export`: collected episodes as `bc.jsonl`, `dpo.jsonl` and `sft.jsonl`."""

from __future__ import annotations

from pathlib import Path

from practicum.cli.options import normalize_flags
from practicum.utils.terminal import ArgumentParser, say


def run(argv: list[str]) -> int:
    from practicum.data.export import STRATEGIES
    from practicum.data.export_files import FORMATS, ExportSettings, export_episodes

    parser = ArgumentParser(prog="practicum export", description=__doc__)
    parser.add_argument("--input-dir", type=Path, default=Path("runs"), help="folder of episodes (default: runs)")
    parser.add_argument("--output-dir", type=Path, default=Path("data/datasets"), help="default: data/datasets")
    parser.add_argument("--format", choices=(*FORMATS, "all"), default="all")
    parser.add_argument(
        "--pairing-strategy",
        choices=STRATEGIES,
        metavar="STRATEGY",
        default="default",
        help="default: what worked over what failed, in one state; same_state: by reward, in one state; "
        "progress_ranked: best episode over worst, step by step by number, in whatever states",
    )
    parser.add_argument(
        "--top-percent", type=float, help="share of a task's episodes for bc and sft (progress_ranked: 0.2)"
    )
    parser.add_argument("--include-failed", action="store_true", help="episodes that failed too, for bc and sft")
    parser.add_argument(
        "--include-held-out", action="store_true", help="take episodes of val and test tasks too, not of train alone"
    )
    parser.add_argument("--skip-empty", action="store_true", help="skip steps without an action")
    parser.add_argument(
        "--prompt",
        choices=("rendered", "plain"),
        default="rendered",
        help="rendered: the text the model was shown; plain: messages under their roles",
    )
    parser.add_argument("--tokenizer", help="tokenizer to render with (default: the one the episodes name)")
    parser.add_argument(
        "--roles",
        nargs="+",
        metavar="ROLE",
        help="roles whose replies are learned, where several act (default: those in training)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
    args = parser.parse_args(normalize_flags(argv))
    settings = ExportSettings(
        input_dir=args.input_dir,
        output_dir=args.output_dir,
        formats=FORMATS if args.format == "all" else (args.format,),
        pairing_strategy=args.pairing_strategy,
        top_percent=args.top_percent,
        include_failed=args.include_failed,
        include_held_out=args.include_held_out,
        skip_empty=args.skip_empty,
        plain_prompts=args.prompt == "plain",
        tokenizer=args.tokenizer,
        roles=args.roles,
        dry_run=args.dry_run,
    )
    result = export_episodes(settings)
    destination = "nothing written" if args.dry_run else f"in {args.output_dir}"
    counts = ", ".join(f"{count} rows in {name}" for name, count in result.counts.items())
    say(f"{result.num_episodes} episodes: {counts}; {destination}")
    return 0 if any(result.counts.values()) else 1
