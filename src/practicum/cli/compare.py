"""`practicum compare A B ...`: policies on the same panel, the first as baseline; is a difference shown?"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from practicum.utils.terminal import ArgumentParser, coloured, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from practicum.evaluation.compare import Comparison, PolicyComparison
    from practicum.evaluation.comparison_report import ComparisonReport
    from practicum.evaluation.diagnosis import Diagnosis
    from practicum.evaluation.metric_delta import MetricDelta

MIN_WIDTH_OF_IMPROVEMENT = 92
"""Columns from which on a table has the relative improvement too."""


def run(argv: list[str]) -> int:
    """Exit code 1: there is no verdict, because nothing was scored or the settings differ."""
    args = make_parser().parse_args(argv)
    from practicum.data.run_folder import write_atomic
    from practicum.evaluation.comparison_report import compare_results

    report = compare_results(
        args.results, alpha=args.alpha, level=args.level, oracle=args.oracle,
        different_settings=args.different_settings, looks=args.looks,
    )  # fmt: skip
    text = json.dumps(report.record(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if str(args.json) == "-":
        sys.stdout.write(text)
    else:
        print("\n".join(describe(report)))
        if args.json is not None:
            write_atomic(args.json, text.encode())
    if args.plots is not None:
        from practicum.evaluation.plots import draw

        paths = draw(report.comparison, args.plots, args.level)
        say(f"pictures: {', '.join(str(path) for path in paths)}", sys.stderr)
    return 0 if all(map(has_verdict, report.comparison.comparisons)) else 1


def has_verdict(comparison: Comparison) -> bool:
    return comparison.success.num_tasks > 0 and comparison.conclusion != "settings differ"


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="practicum compare",
        description=__doc__,
        epilog="A result is a file of `practicum eval --out`, or a folder with one for every environment.",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT", help="the baseline, then what to compare")
    parser.add_argument("--alpha", type=float, default=0.05, help="chance of a false finding that is accepted")
    parser.add_argument("--level", type=float, default=0.95, help="level of the scores' own intervals (default: 0.95)")
    parser.add_argument(
        "--looks",
        type=int,
        default=1,
        help="how often these policies will be compared in all, with tasks added between (default: 1): each look is "
        "tested at a share of alpha",
    )
    parser.add_argument(
        "--different-settings", action="store_true",
        help="give a verdict although temperature, token limits, formats, tools, prompts or roles differ",
    )  # fmt: skip
    parser.add_argument("--oracle", type=Path, help="the expert's result on the same panel: how much is there to gain?")
    parser.add_argument("--json", type=Path, help="write everything as JSON here ('-': print it and nothing else)")
    parser.add_argument("--plots", type=Path, help="write pictures (PNG, SVG, PDF) into this folder")
    return parser


def describe(report: ComparisonReport) -> list[str]:
    """Lines for a terminal of a hundred columns."""
    policies = report.comparison
    if not any(comparison.success.num_tasks for comparison in policies.comparisons):
        return wrapped([comparison.sentence for comparison in policies.comparisons[:1]])
    lines = (
        metric_table(policies.comparisons[0])
        if len(policies.comparisons) == 1
        else policy_table(policies, report.level)
    )
    if len(policies.panels) > 1:
        lines += ["", *pareto_table(policies, report.level)]
    for comparison, diagnoses in zip(policies.comparisons, report.diagnoses, strict=True):
        lines += ["", *describe_comparison(comparison, diagnoses, len(policies.panels) > 1)]
    return lines


def metric_table(comparison: Comparison) -> list[str]:
    """One row per metric: HTDAG's table, with the interval and the test that it leaves out."""
    from practicum.evaluation.comparison_text import describe_tasks
    from practicum.utils.tables import p_text, table
    from practicum.utils.terminal import text_width

    level = f"{100 * comparison.success.interval.level:.3g} %"
    rows = [
        [
            delta.name,
            format_value(delta, delta.baseline),
            format_value(delta, delta.trained),
            format_improvement(delta),
            format_interval(delta),
            "–" if math.isnan(delta.p_value) else p_text(delta.p_value),
        ]
        for delta in comparison.deltas
    ]
    not_scored = f", {comparison.num_left_out} of the panel not scored by both" if comparison.num_left_out else ""
    baseline, trained = comparison.baseline, comparison.trained
    head = f"{baseline.environment}, panel {baseline.panel}: {describe_tasks(comparison.success)}{not_scored}"
    names = [f"Baseline: {baseline.policy}", f"Trained:  {trained.policy}"]
    headers = ["Metric", "Baseline", "Trained", "Improvement", f"Difference [{level}]", "p"]
    if text_width(sys.stdout) < MIN_WIDTH_OF_IMPROVEMENT:  # the names of the metrics need the space
        headers, rows = headers[:3] + headers[4:], [cells[:3] + cells[4:] for cells in rows]
    return [*wrapped([head, *names]), "", table(headers, rows, "="), *wrapped([comparison.t_test.sentence])]


def policy_table(comparison: PolicyComparison, level: float) -> list[str]:
    """One row per policy and environment."""
    from practicum.utils.tables import p_text, percent, percent_interval, table

    rows = []
    for panel in comparison.panels:
        for policy in comparison.policies:
            result = policy.results[panel]
            interval = result.interval(level)
            score = f"{percent(result.success_rate)} {percent_interval(interval.low, interval.high)}"
            pair = next((c for c in comparison.comparisons_of(policy) if c.baseline.panel == panel), None)
            prefix = [policy.label(result)] if len(comparison.panels) > 1 else []
            difference = ["", "", "", "baseline"]
            if pair is not None:
                points, limits = format_interval(pair.success).split(" ", 1)
                outcome = {"no difference shown": "not shown"}.get(pair.conclusion, str(pair.conclusion))
                difference = [points, limits, p_text(pair.p_corrected), outcome]
                if not pair.success.num_tasks:
                    difference = ["–", "", "", "not scored"]
            rows.append([policy.name, *prefix, score, *difference])
    prefix = ["Environment"] if len(comparison.panels) > 1 else []
    wide = f"{100 * comparison.comparisons[0].success.interval.level:.3g} %"
    headers = ["Policy", *prefix, f"Success [{100 * level:g} %]", "Points", f"[{wide}]", "p (Holm)", "Result"]
    return [table(headers, rows)]


def pareto_table(comparison: PolicyComparison, level: float) -> list[str]:
    """Affine's aggregates over environments, and how many policies dominate each one."""
    from practicum.evaluation.multi_environment import aggregate, frontier_shares, overall_interval
    from practicum.evaluation.stats.pareto import dominated_by, pareto_score
    from practicum.utils.tables import number, percent, percent_interval, table

    dominators = dominated_by({policy.name: policy.scores for policy in comparison.policies})
    shares = frontier_shares(comparison.policies)
    rows = []
    for policy in comparison.policies:
        results, by, share = list(policy.results.values()), dominators[policy.name], shares[policy.name]
        total, limits = aggregate(results), overall_interval(results, level)
        overall = f"{percent(total.overall_success_rate)} {percent_interval(limits.low, limits.high)}"
        rows.append([
            policy.name, percent(total.weighted_accuracy), number(total.weighted_mean_score), overall,
            f"{pareto_score(policy.scores, comparison.policies[0].scores):.2f}",
            "on it" if not by else f"dominated by {len(by)}", percent(share, digits=0),
        ])  # fmt: skip
    headers = ["Policy", "Accuracy", "Score", f"Overall [{100 * level:g} %]", "Pareto", "Frontier", "of draws"]
    note = (
        "Accuracy and score are weighted by tasks, the overall success is the mean of environments. Of draws: how "
        "often the policy is on the frontier when the tasks are drawn again."
    )
    return [table(headers, rows), *wrapped([note])]


def describe_comparison(comparison: Comparison, diagnoses: Sequence[Diagnosis], several: bool) -> list[str]:
    """The result in words, the gate, and below the gate's threshold the possible causes."""
    from practicum.evaluation.gates import NEXT_STEPS, Gate

    prefix = f"{comparison.baseline.environment}: " if several else ""
    lines = [coloured(line, str(comparison.conclusion)) for line in wrapped([f"{prefix}{comparison.sentence}"])]
    if not has_verdict(comparison):
        return lines
    decision = comparison.decision
    lines += wrapped([comparison.power_statement])
    steps = "; ".join(NEXT_STEPS[decision.gate])
    lines += wrapped([f"Gate: {decision.sentence}.{f' Next: {steps}.' if steps else ''}"])
    if decision.gate in (Gate.MARGINAL, Gate.UNPROVEN, Gate.KEEP):
        marks = {True: "likely", False: "no sign", None: "not known"}
        for diagnosis in diagnoses:
            text = f"  {diagnosis.question} {marks[diagnosis.likely].capitalize()}. {diagnosis.answer}"
            lines += wrapped([text])
    return lines


def format_value(delta: MetricDelta, value: float) -> str:
    from practicum.utils.tables import number, percent

    return percent(value) if delta.rate else number(value)


def format_improvement(delta: MetricDelta) -> str:
    from practicum.utils.tables import percent

    if delta.improvement is None:
        return percent(0.0) if delta.difference == 0 else "from 0" if delta.baseline == 0 else "–"
    return percent(delta.improvement, signed=True)


def format_interval(delta: MetricDelta) -> str:
    from practicum.utils.tables import number

    if delta.rate:
        low, high = f"{100 * delta.interval.low:+.1f}", f"{100 * delta.interval.high:+.1f}"
        return f"{100 * delta.difference:+.1f} [{low}, {high}]"
    low, high = number(delta.interval.low, True), number(delta.interval.high, True)
    return f"{number(delta.difference, True)} [{low}, {high}]"


def wrapped(texts: list[str]) -> list[str]:
    from practicum.utils.terminal import printable, wrap

    return [line for text in texts for line in wrap(printable(text), sys.stdout, "    ")]
