"""`practicum matrix RESULT ...`: many modes on one panel: success, steps, usefulness; matrix.csv, matrix.md."""

from __future__ import annotations

import argparse
from pathlib import Path

from practicum.cli.options import either_spelling
from practicum.errors import UserError


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum matrix", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT", help="files of `practicum eval --out`")
    parser.add_argument("--baseline", help="mode that the others are held against (default: the first; 'none')")
    parser.add_argument("--alpha", type=float, default=0.05, help="chance of a false finding that is accepted")
    parser.add_argument("--level", type=float, default=0.8, help="level of the scores' intervals (default: 0.8)")
    parser.add_argument("--out", type=Path, help="folder for matrix.csv, matrix.md and errors.jsonl")
    args = parser.parse_args(either_spelling(argv))
    for name in ("alpha", "level"):
        if not 0 < vars(args)[name] < 1:
            raise UserError(f"--{name} {vars(args)[name]:g} must lie between 0 and 1.")
    from practicum.evaluation.entry import read_entries
    from practicum.evaluation.matrix import matrix, write_matrix
    from practicum.evaluation.table import number, percent, table

    entries = read_entries(args.results)
    baseline = None if args.baseline == "none" else args.baseline or entries[0].name
    rows = matrix(entries, baseline, args.alpha)
    shown = []
    for row in rows:
        r = row.record(args.level)
        shown.append([
            r["mode"], f"{r['valid_tasks']}/{r['total_tasks']}", str(r["init_or_agent_errors"]),
            f"{percent(r['success_rate'])} [{percent(r['success_low'])}, {percent(r['success_high'])}]",
            "" if r["score_delta"] is None else f"{100 * r['score_delta']:+.1f}",
            "–" if r["median_steps"] is None else f"{r['median_steps']:g}", number(r["mean_wall_time"]),
            r["usefulness_label"], {None: "", True: "yes", False: "no"}[r["shown"]],
        ])  # fmt: skip
    headers = ["Mode", "Valid", "Errors", f"Success [{100 * args.level:g} %]", "Δ pp", "Steps", "Seconds", "Usefulness",
               "Shown"]  # fmt: skip
    print(table(headers, shown))
    if args.out is not None:
        write_matrix(args.out, rows, baseline, args.level)
        print(f"matrix.csv, matrix.md and errors.jsonl in {args.out}")
    return 0
