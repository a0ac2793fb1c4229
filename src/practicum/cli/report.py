"""`practicum report [RUN ...]`: runs in one HTML file that needs no network: curves, health, tables, episodes."""

from __future__ import annotations

from pathlib import Path

from practicum.errors import UserError
from practicum.utils.terminal import ArgumentParser, say

MAX_UNREADABLE_SHOWN = 5
"""Unreadable episodes of a run that are named."""


def run(argv: list[str]) -> int:
    parser = ArgumentParser(
        prog="practicum report",
        description=__doc__,
        epilog="A RUN is a folder with metrics, episodes or both, a folder with such folders below it, or a result of "
        "`practicum eval --out`. Each stage is compared with the one before it and with the first; the baseline can be "
        "chosen on the page.",
    )
    parser.add_argument(
        "runs", nargs="*", type=Path, default=[Path("runs")], metavar="RUN", help="a folder or result (default: runs)"
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("report.html"), help="the file (default: report.html)")
    parser.add_argument(
        "--episodes-mb",
        type=float,
        default=12.0,
        help="megabytes of the file for whole episodes; the others are listed only (default: 12)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="FILE.py:CLASS",
        help="an environment of your own that draws its episodes (those of the package are known)",
    )
    args = parser.parse_args(argv)
    if not 0 <= args.episodes_mb <= 2000:
        raise UserError(f"--episodes-mb {args.episodes_mb:g}: give a number of megabytes from 0 to 2000.")
    if args.out.is_dir():
        raise UserError(f"--out {args.out} is a folder; give the name of a file.")

    from practicum.report.document import write_report
    from practicum.utils.tables import counted

    views, num_bytes = write_report(args.runs, args.out, int(args.episodes_mb * (1 << 20)), environments=args.env)
    num_episodes = sum(len(view.index.rows) for view in views)
    say(f"{args.out}: {counted(len(views), 'run')}, {counted(num_episodes, 'episode')}, {num_bytes / 1e6:.1f} MB")
    for view in views:
        for entry in view.index.unreadable[:MAX_UNREADABLE_SHOWN]:
            say(f"  not readable: {view.run.folder / entry.path}: {entry.reason}")
        if len(view.index.unreadable) > MAX_UNREADABLE_SHOWN:
            say(f"  … and {len(view.index.unreadable) - MAX_UNREADABLE_SHOWN} more in {view.run.folder}")
        if view.error is not None:
            say(f"  not readable: {view.error}")
    return 0
