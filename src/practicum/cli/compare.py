"""`practicum compare A B ...`: policies on the same panel, the first as baseline; is a difference shown?"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from practicum.errors import UserError

if TYPE_CHECKING:
    from practicum.evaluation.compare import Comparison, PolicyComparison
    from practicum.evaluation.diagnosis import Diagnosis
    from practicum.evaluation.metric_delta import MetricDelta
    from practicum.evaluation.result import EvalResult

WIDTH = 100


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="practicum compare",
        description=__doc__,
        epilog="A result is a file of `practicum eval --out`, or a folder with one for every environment.",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT", help="the baseline, then what to compare")
    parser.add_argument("--alpha", type=float, default=0.05, help="chance of a false finding that is accepted")
    parser.add_argument("--level", type=float, default=0.8, help="level of the scores' own intervals (default: 0.8)")
    parser.add_argument("--oracle", type=Path, help="the expert's result on the same panel: how much is there to gain?")
    parser.add_argument("--json", type=Path, help="write everything as JSON here ('-': print it and nothing else)")
    parser.add_argument("--plots", type=Path, help="write PNG pictures into this folder")
    args = parser.parse_args(argv)
    for name in ("alpha", "level"):
        if not 0 < vars(args)[name] < 1:
            raise UserError(f"--{name} {vars(args)[name]:g} must lie between 0 and 1.")
    from practicum.data.store import write_atomic
    from practicum.evaluation.compare import compare_policies
    from practicum.evaluation.policy_results import read_policy_results
    from practicum.evaluation.result import read_result

    found = compare_policies(read_policy_results(args.results), args.alpha)
    oracle = None if args.oracle is None else read_result(args.oracle)
    reasons = {id(comparison): causes_of(comparison, oracle) for comparison in found.comparisons}
    whole = found.record(args.level)
    for comparison, record in zip(found.comparisons, whole["comparisons"], strict=True):
        record["causes"] = [{"question": c.question, "likely": c.likely, "answer": c.answer}
                            for c in reasons[id(comparison)]]  # fmt: skip
    text = json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if str(args.json) == "-":
        sys.stdout.write(text)
    else:
        print("\n".join(described(found, args.level, reasons)))
        if args.json is not None:
            write_atomic(args.json, text.encode())
    if args.plots is not None:
        from practicum.evaluation.plots import draw

        made = draw(found, args.plots, args.level)
        print(f"pictures: {', '.join(str(path) for path in made)}", file=sys.stderr)
    return 0


def causes_of(comparison: Comparison, oracle: EvalResult | None) -> list[Diagnosis]:
    from practicum.evaluation.diagnosis import diagnose
    from practicum.evaluation.policy_results import check_panels

    if oracle is not None and oracle.environment == comparison.baseline.environment:
        check_panels(comparison.baseline, oracle)
        return diagnose(comparison, oracle)
    return diagnose(comparison)


def described(found: PolicyComparison, level: float, reasons: dict[int, list[Diagnosis]]) -> list[str]:
    """Lines for a terminal of a hundred columns."""
    lines: list[str] = []
    if len(found.comparisons) == 1:
        lines += paper_table(found.comparisons[0])
    else:
        lines += summary(found, level)
    if len(found.panels) > 1:
        lines += ["", *pareto_table(found)]
    for comparison in found.comparisons:
        lines += ["", *verdict(comparison, reasons[id(comparison)], len(found.panels) > 1)]
    return lines


def paper_table(comparison: Comparison) -> list[str]:
    """Founding paper 000's table, with what it leaves out: the interval and the test of every row."""
    from practicum.utils.tables import p_text, table

    level = f"{100 * comparison.success.interval.level:g} %"
    rows = [
        [change.name, shown(change, change.baseline), shown(change, change.trained), improvement(change),
         span(change), p_text(change.p_value)]
        for change in comparison.changes
    ]  # fmt: skip
    left = f", {comparison.left_out} of the panel not scored by both" if comparison.left_out else ""
    head = (
        f"{comparison.baseline.environment}, panel {comparison.baseline.panel}: {comparison.success.tasks} tasks{left}"
    )
    names = [f"Baseline: {comparison.baseline.policy}", f"Trained:  {comparison.trained.policy}"]
    headers = ["Metric", "Baseline", "Trained", "Improvement", f"Difference [{level}]", "p"]
    return [*fitted([head, *names]), "", table(headers, rows, "="), comparison.t_test.sentence]


def summary(found: PolicyComparison, level: float) -> list[str]:
    """One line for every policy in every environment."""
    from practicum.utils.tables import p_text, percent, table

    rows = []
    for panel in found.panels:
        for entry in found.entries:
            examination = entry.results[panel]
            interval = examination.interval(level)
            score = f"{percent(examination.success_rate)} [{percent(interval.low)}, {percent(interval.high)}]"
            pair = next((c for c in found.of(entry) if c.baseline.panel == panel), None)
            where = [entry.label(examination)] if len(found.panels) > 1 else []
            told = ["", "", "", "baseline"] if pair is None else [
                f"{100 * pair.success.difference:+.1f}", span(pair.success).split(" ", 1)[1], p_text(pair.p_corrected),
                {"no difference shown": "not shown"}.get(pair.verdict, pair.verdict)]  # fmt: skip
            rows.append([entry.name, *where, score, *told])
    where = ["Environment"] if len(found.panels) > 1 else []
    wide = f"{100 * found.comparisons[0].success.interval.level:g} %"
    headers = ["Policy", *where, f"Success [{100 * level:g} %]", "Points", f"[{wide}]", "p (Holm)", "Verdict"]
    return [table(headers, rows)]


def pareto_table(found: PolicyComparison) -> list[str]:
    """Founding paper 003: aggregates over environments, and who is dominated by whom."""
    from practicum.evaluation.multi_environment import aggregate
    from practicum.evaluation.stats.pareto import dominated_by, pareto_score
    from practicum.utils.tables import number, percent, table

    dominators = dominated_by({entry.name: entry.scores for entry in found.entries})
    rows = []
    for entry in found.entries:
        whole, by = aggregate(list(entry.results.values())), dominators[entry.name]
        rows.append([
            entry.name, percent(whole.weighted_accuracy), number(whole.weighted_mean_score),
            percent(whole.overall_success_rate), f"{pareto_score(entry.scores, found.entries[0].scores):.2f}",
            "on it" if not by else f"dominated by {len(by)}",
        ])  # fmt: skip
    headers = ["Policy", "Accuracy, weighted", "Score, weighted", "Success, overall", "Pareto score", "Frontier"]
    return [table(headers, rows)]


def verdict(comparison: Comparison, reasons: list[Diagnosis], several: bool) -> list[str]:
    """The finding in words, the gate, and where it was missed the questions that the data can answer."""
    from practicum.evaluation.gates import STEPS, Gate

    where = f"{comparison.baseline.environment}: " if several else ""
    lines = fitted([f"{where}{comparison.sentence}", comparison.outlook])
    if not comparison.success.tasks:
        return lines
    decision = comparison.decision
    lines += fitted([f"Gate: {decision.sentence}. Next: {'; '.join(STEPS[decision.gate])}."])
    if decision.gate in (Gate.MARGINAL, Gate.UNPROVEN, Gate.KEEP):
        marks = {True: "likely", False: "no sign", None: "not known"}
        for cause in reasons:
            lines += fitted([f"  {cause.question} {marks[cause.likely].capitalize()}. {cause.answer}"])
    return lines


def shown(change: MetricDelta, value: float) -> str:
    from practicum.utils.tables import number, percent

    return percent(value) if change.rate else number(value)


def improvement(change: MetricDelta) -> str:
    from practicum.utils.tables import percent

    if change.improvement is None:
        return "0.0%" if change.difference == 0 else "from 0" if change.baseline == 0 else "–"
    return percent(change.improvement, signed=True)


def span(change: MetricDelta) -> str:
    from practicum.utils.tables import number

    if change.rate:
        low, high = f"{100 * change.interval.low:+.1f}", f"{100 * change.interval.high:+.1f}"
        return f"{100 * change.difference:+.1f} [{low}, {high}]"
    low, high = number(change.interval.low, True), number(change.interval.high, True)
    return f"{number(change.difference, True)} [{low}, {high}]"


def fitted(texts: list[str]) -> list[str]:
    from practicum.utils.tables import printable

    return [line for text in texts for line in textwrap.wrap(printable(text), WIDTH, subsequent_indent="    ")]
