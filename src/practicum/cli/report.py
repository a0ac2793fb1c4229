"""`practicum report RUN ...`: runs in one HTML file that needs no network: curves, health, tables, episodes."""

from __future__ import annotations

import argparse
from pathlib import Path

from practicum.errors import UserError


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="practicum report",
        description=__doc__,
        epilog="A RUN is a folder with metrics, episodes or both, a folder with such folders below it, or a result of "
        "`practicum eval --out`. The first one is the baseline that the others are compared with.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("-o", "--out", type=Path, default=Path("report.html"), help="the file (default: report.html)")
    parser.add_argument(
        "--episodes-mb",
        type=float,
        default=12.0,
        help="megabytes of the file for whole episodes; the others are listed only (default: 12)",
    )
    args = parser.parse_args(argv)
    if not 0 <= args.episodes_mb <= 2000:
        raise UserError(f"--episodes-mb {args.episodes_mb:g}: give a number of megabytes from 0 to 2000.")
    if args.out.is_dir():
        raise UserError(f"--out {args.out} is a folder; give the name of a file.")

    from practicum.data.store import write_atomic
    from practicum.report.document import document
    from practicum.report.runs import find_runs
    from practicum.utils.progress import Progress

    runs = find_runs(args.runs)
    with Progress("read", 0, "episodes") as progress:

        def tell(name: str, waiting: int) -> None:
            progress.total = progress.done + waiting + 1
            progress.advance(1)

        page, readings = document(runs, int(args.episodes_mb * (1 << 20)), tell)
    episodes = sum(len(reading.index.rows) for reading in readings)
    if not episodes and all(reading.fault is not None for reading in readings):
        raise UserError(f"There is nothing to report, so {args.out} was not written: {readings[0].fault}")
    write_atomic(args.out, page)
    print(f"{args.out}: {len(readings)} runs, {episodes} episodes, {len(page) / 1e6:.1f} MB")
    for reading in readings:
        for entry in reading.index.unreadable[:5]:
            print(f"  not readable: {reading.run.folder / entry.path}: {entry.reason}")
        if len(reading.index.unreadable) > 5:
            print(f"  … and {len(reading.index.unreadable) - 5} more in {reading.run.folder}")
        if reading.fault is not None:
            print(f"  not readable: {reading.fault}")
    return 0
