"""`practicum export`: collected episodes as `bc.jsonl`, `dpo.jsonl` and `sft.jsonl`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.cli.options import normalize_flags
from practicum.errors import UserError

if TYPE_CHECKING:
    from practicum.trajectory import Trajectory

FORMATS = ("bc", "dpo", "sft")


def run(argv: list[str]) -> int:
    from practicum.data import export
    from practicum.data.jsonl import write_files

    parser = argparse.ArgumentParser(prog="practicum export", description=__doc__)
    parser.add_argument("--input-dir", type=Path, default=Path("runs"), help="folder of episodes (default: runs)")
    parser.add_argument("--output-dir", type=Path, default=Path("data/datasets"), help="default: data/datasets")
    parser.add_argument("--format", choices=(*FORMATS, "all"), default="all")
    parser.add_argument(
        "--pairing-strategy",
        choices=export.STRATEGIES,
        default="default",
        help="default: what worked over what failed, in one state; same_state: by reward, in one state; "
        "progress_ranked: best episode over worst, step by step by number, in whatever states",
    )
    parser.add_argument(
        "--top-percent", type=float, help="share of a task's episodes to imitate (progress_ranked: 0.2)"
    )
    parser.add_argument("--include-failed", action="store_true", help="imitate episodes that failed too")
    parser.add_argument(
        "--include-held-out", action="store_true", help="take episodes of val and test tasks too, not of train alone"
    )
    parser.add_argument("--skip-empty", action="store_true", help="pass over steps without an action")
    parser.add_argument(
        "--prompt",
        choices=("rendered", "plain"),
        default="rendered",
        help="rendered: the text the model was shown; plain: messages under their roles",
    )
    parser.add_argument("--tokenizer", help="tokenizer to render with (default: the one the episodes name)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
    args = parser.parse_args(normalize_flags(argv))
    export.check_strategy(args.pairing_strategy, args.top_percent)
    wanted = FORMATS if args.format == "all" else (args.format,)
    episodes = read(args.input_dir, args.skip_empty, args.include_held_out)
    rows = {f"{name}.jsonl": made for name, made in rows_of(args, wanted, episodes).items()}
    if args.dry_run:
        counts = {name: sum(1 for _ in made) for name, made in rows.items()}
    else:
        counts = write_files(args.output_dir, rows)
    where = "nothing written" if args.dry_run else f"in {args.output_dir}"
    listed = ", ".join(f"{count} rows in {name}" for name, count in counts.items())
    print(f"{len(episodes)} episodes: {listed}; {where}")
    return 0 if any(counts.values()) else 1


def read(folder: Path, skip_empty: bool, include_held_out: bool) -> list[Trajectory]:
    """The episodes below a folder; a step without an action is named, unless it is to be passed over."""
    from practicum.data import export
    from practicum.data.jsonl import read_whole_episode
    from practicum.utils.progress import Progress

    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}'; make one with `practicum collect`.")
    paths = sorted(folder.rglob("*__attempt_*.jsonl"))
    if not paths:
        raise UserError(f"There is no episode below '{folder}'; make some with `practicum collect`.")
    episodes, held_out = [], []
    with Progress("read", len(paths), "episodes") as progress:
        for path in paths:
            episode = read_whole_episode(path)
            progress.advance()
            if not include_held_out and export.is_held_out(episode):
                held_out.append(episode.task.split)
                continue
            empty = next((number for number, turn in enumerate(episode.turns) if not turn.reply.strip()), None)
            if empty is not None and not skip_empty:
                raise UserError(
                    f"'{path}', line {empty + 2}: 'reply' is empty, so there is no action to learn; "
                    "give --skip-empty to pass over such steps."
                )
            episodes.append(episode)
    export.report_held_out(folder, held_out, len(paths), "--include-held-out")
    return episodes


def rows_of(
    args: argparse.Namespace, wanted: Sequence[str], episodes: Sequence[Trajectory]
) -> Mapping[str, Iterable[Mapping[str, Any]]]:
    """The rows of each format wanted, made as they are written; what is left out or doubtful is said."""
    from practicum.data import export

    prompt = export.plain_prompt if args.prompt == "plain" else export.RenderedPrompts(args.tokenizer)
    chosen = export.successful_episodes(episodes, args.pairing_strategy, args.top_percent, args.include_failed)
    texts = [episode for episode in episodes if not export.has_images(episode)]
    made: dict[str, Iterable[Mapping[str, Any]]] = {}
    if len(texts) < len(episodes) and set(wanted) & {"bc", "dpo"}:
        print(f"{len(episodes) - len(texts)} episodes show images, which rows of text cannot: only in sft.jsonl")
    if "bc" in wanted:
        made["bc"] = export.bc_rows([e for e in chosen if not export.has_images(e)], prompt)
    if "dpo" in wanted:
        pairs = export.preferences(texts, args.pairing_strategy)
        if args.pairing_strategy == "progress_ranked" and pairs:
            apart = sum(not pair.same_state for pair in pairs)
            print(f"{apart} of {len(pairs)} pairs compare replies given in different states (see --pairing_strategy)")
        made["dpo"] = export.dpo_rows(pairs, prompt)
    if "sft" in wanted:
        whole = [e for e in chosen if export.one_conversation(e) and all(t.reply.strip() for t in e.turns)]
        if len(whole) < len(chosen):
            print(f"{len(chosen) - len(whole)} episodes are no single conversation of full replies: not in sft.jsonl")
        if any(turn.action.calls for e in whole if not e.provenance.get("tools") for turn in e.turns):
            print(
                "these episodes call tools but do not record their schemas: sft.jsonl names none, bc.jsonl shows them"
            )
        made["sft"] = export.sft_rows(whole)
    return made
