"""`practicum matrix`: many modes on one panel: success, steps, usefulness; matrix.csv, matrix.md and errors.jsonl.

Give result files, or modes that are evaluated first: --mode NAME=POLICY several times, or --config FILE and
--experiment NAME. A --mode may also be the name of an experiment. All other flags are then those of `practicum eval`,
the same for every mode. Run again, it continues where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from practicum.cli.compare import wrapped
from practicum.cli.options import HelpFormatter, normalize_flags
from practicum.errors import UserError
from practicum.utils.terminal import ArgumentParser, say

MIN_WIDTH_OF_ALL_COLUMNS = 96

if TYPE_CHECKING:
    from practicum.config.experiments import Experiment
    from practicum.evaluation.matrix import MatrixRow
    from practicum.evaluation.result import EvalResult
    from practicum.evaluation.runner import EvalRunner


def run(argv: list[str]) -> int:
    """Exit code 1: a mode in which nothing was scored."""
    arguments = normalize_flags(argv)
    args, eval_flags = make_parser(modes_only=True).parse_known_args(arguments)
    modes = [] if {"-h", "--help"} & set(arguments) else read_modes(args)
    if not modes:
        args = make_parser().parse_args(arguments)
    for name in ("alpha", "level"):
        if not 0 < vars(args)[name] < 1:
            raise UserError(f"--{name} {vars(args)[name]:g} must lie between 0 and 1.")
    results = evaluate_modes(modes, args, eval_flags) if modes else args.results
    expected = {mode.name: mode.expected for mode in modes if mode.expected is not None}
    from practicum.evaluation.matrix import find_mode, matrix, notes, write_matrix
    from practicum.evaluation.policy_results import read_policy_results

    if not results:
        raise UserError("Nothing to compare: give results of `practicum eval --out`, or --mode NAME=POLICY twice.")
    policies = read_policy_results(results)
    baseline = None if args.baseline == "none" else find_mode(policies, args.baseline or policies[0].name).name
    rows = matrix(policies, baseline, args.alpha, different_settings=args.different_settings)
    print("\n".join([describe(rows, args.level), *wrapped(notes(rows))]))
    if args.out is not None:
        write_matrix(args.out, rows, baseline, args.level, expected)
        say(f"matrix.csv, matrix.md and errors.jsonl in {args.out}")
    return 0 if all(row.result.scored for row in rows) else 1


def make_parser(modes_only: bool = False) -> ArgumentParser:
    """With `modes_only`, unknown arguments are left for `practicum eval`, and none is taken for a result file."""
    parser = ArgumentParser(
        prog="practicum matrix", description=__doc__, formatter_class=HelpFormatter,
        allow_abbrev=False, add_help=not modes_only,
    )  # fmt: skip
    if not modes_only:
        parser.add_argument("results", nargs="*", type=Path, metavar="RESULT", help="files of `practicum eval --out`")
    parser.add_argument(
        "--mode", action="extend", nargs="+", default=[], metavar="NAME=POLICY", help="evaluate these, and compare"
    )
    parser.add_argument(
        "--config",
        type=Path,
        help="YAML: defaults, and a list 'experiments' of flags of eval (configs/experiments.yaml)",
    )
    parser.add_argument(
        "--experiment", action="extend", nargs="+", default=[], help="some of --config's (default: all)"
    )
    parser.add_argument(
        "--baseline",
        help="mode, or name of its result file, that the others are compared with (default: the first; 'none')",
    )
    parser.add_argument("--alpha", type=float, default=0.05, help="chance of a false finding that is accepted")
    parser.add_argument("--level", type=float, default=0.95, help="level of the scores' intervals (default: 0.95)")
    parser.add_argument(
        "--different-settings", action="store_true", help="test modes although temperature or token limits differ"
    )
    parser.add_argument(
        "--out", type=Path, help="folder for the matrix, and for the results of modes (of modes, default: results)"
    )
    return parser


def read_modes(args: argparse.Namespace) -> list[Experiment]:
    """The modes of --mode, or of --config and --experiment; none where result files are given."""
    from practicum.cli import modes

    if args.mode and args.experiment:
        raise UserError("Name modes with --mode or with --experiment, not with both.")
    if args.mode:
        listed = modes.named_modes(args.mode, args.config)
    else:
        listed = modes.read_modes(args.config, args.experiment) if args.config or args.experiment else []
    if listed and args.out is None:
        args.out = Path("results")
    return listed


def evaluate_modes(modes: list[Experiment], args: argparse.Namespace, eval_flags: list[str]) -> list[Path]:
    """Evaluate every mode as far as its result file lacks attempts. Flags that are typed override those of a file."""
    from practicum.cli.eval import make_parser as make_eval_parser
    from practicum.cli.eval import parse_settings
    from practicum.cli.modes import explained_url, typed_over, with_subset

    make_parser().refuse_unknown_options(eval_flags, also=make_eval_parser().option_names())
    typed = with_subset(args.config, eval_flags)
    paths = [args.out / f"{mode.name}.json" for mode in modes]
    settings = []
    for mode, path in zip(modes, paths, strict=True):
        own = ["--name", mode.name, "--level", str(args.level), "--out", str(path)]
        settings += parse_settings([*typed_over(mode, typed), *own])
    from practicum.evaluation.result_table import describe as describe_result
    from practicum.evaluation.runner import evaluate_all

    def on_result(runner: EvalRunner, result: EvalResult) -> None:
        print(describe_result(runner, result), end="\n\n", flush=True)

    with explained_url(typed):
        evaluate_all(settings, on_result=on_result)  # a mode in which nothing was scored is a line of the matrix too
    return paths


def describe(rows: list[MatrixRow], level: float) -> str:
    from practicum.utils.tables import number, percent, percent_interval, table
    from practicum.utils.terminal import text_width

    cells = []
    for row in rows:
        r = row.record(level)
        cells.append([
            r["mode"], f"{r['valid_tasks']}/{r['total_tasks']}", str(r["init_or_agent_errors"]),
            f"{percent(r['success_rate'])} {percent_interval(r['success_low'], r['success_high'])}",
            "" if r["score_delta"] is None else f"{100 * r['score_delta']:+.1f}",
            "–" if r["median_steps"] is None else f"{r['median_steps']:g}", number(r["mean_wall_time"]),
            r["usefulness_label"], {None: "", True: "yes", False: "no"}[r["shown"]],
        ])  # fmt: skip
    headers = ["Mode", "Valid", "Errors", f"Success [{100 * level:g} %]", "Δ pp", "Steps", "Seconds", "Usefulness",
               "Shown"]  # fmt: skip
    if text_width(sys.stdout) < MIN_WIDTH_OF_ALL_COLUMNS:  # matrix.md has them all
        shown = [index for index, header in enumerate(headers) if header not in ("Errors", "Seconds")]
        headers, cells = [headers[index] for index in shown], [[row[index] for index in shown] for row in cells]
    return table(headers, cells)
