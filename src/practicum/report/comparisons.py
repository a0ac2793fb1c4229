"""Comparisons of the parts of runs: every pair that a reader of the page can choose, corrected over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from practicum.errors import UserError
from practicum.evaluation.compare import Comparison, Conclusion, compare_pair
from practicum.evaluation.comparison_text import describe_evidence
from practicum.evaluation.metric_delta import finite
from practicum.evaluation.stats.multiple_testing import holm
from practicum.report.run_parts import RunPart
from practicum.utils.terminal import escape_invisible

MAX_PAIRS = 120
"""Pairs that are compared, at most; those with the first part and of neighbours come first."""

TESTED = (Conclusion.BETTER, Conclusion.WORSE, Conclusion.NOT_SHOWN)

PairResult = tuple[Comparison, str] | None
"""A comparison and a description of its tasks; None where two parts have no task in common."""
PairCache = dict[tuple[int, int], tuple[RunPart, RunPart, PairResult]]
"""Results by the ids of the two parts, which it keeps alive, so that a server compares no pair twice."""


def compare_parts(parts: Sequence[RunPart], cache: PairCache | None = None) -> list[dict[str, Any]]:
    """Compare every pair of parts of one environment and split, in both directions: any part can be the baseline.

    p-values are corrected over all pairs (Holm), a pair counted once. So a verdict is the same whichever baseline a
    reader chooses, and choosing the one with the best verdict gains nothing.
    """
    cached = {} if cache is None else dict(cache)
    used: PairCache = {}
    compared: list[tuple[RunPart, RunPart, Comparison, str]] = []
    for first, second in _pairs(parts):
        key = id(first), id(second)
        used[key] = cached.get(key) or (first, second, _compare(first, second))
        result = used[key][2]
        if result is not None:
            compared.append((first, second, *result))
    if cache is not None:
        cache.clear()
        cache.update(used)
    corrected = holm([comparison.p_corrected for _, _, comparison, _ in compared])
    with_failures = holm(
        [c.p_corrected if c.unscored_as_failures is None else c.p_corrected_failures for _, _, c, _ in compared]
    )
    records = []
    for (first, second, comparison, basis), p, failures in zip(compared, corrected, with_failures, strict=True):
        item = replace(comparison, p_corrected=p, p_corrected_failures=failures, num_comparisons=len(compared))
        records += [_record(first, second, item, basis), _record(second, first, item.reversed(), basis)]
    return records


def _pairs(parts: Sequence[RunPart]) -> list[tuple[RunPart, RunPart]]:
    groups: dict[tuple[str, str], list[RunPart]] = {}
    for part in parts:
        if not part.unrated and part.result.scored:
            groups.setdefault((part.result.environment, part.split or "test"), []).append(part)
    pairs = [
        (first not in (0, second - 1), group[first], group[second])
        for group in groups.values()
        for first, second in combinations(range(len(group)), 2)
    ]
    return [(first, second) for _, first, second in sorted(pairs, key=lambda pair: pair[0])[:MAX_PAIRS]]


def _compare(first: RunPart, second: RunPart) -> PairResult:
    """The comparison on the tasks that both have, and a description of these; None where there are none."""
    a = replace(first.result, policy=first.label)
    b = replace(second.result, policy=second.label)
    if first.frozen and second.frozen and a.panel == b.panel:
        return compare_pair(a, b), f"the same frozen panel, {a.panel}"
    common = {(s.task, s.cluster) for s in a.scored} & {(s.task, s.cluster) for s in b.scored}
    if not common:
        return None
    a, b = (
        replace(
            e,
            panel="common",
            num_tasks=len(common),
            attempts=tuple(s for s in e.attempts if (s.task, s.cluster) in common),
        )
        for e in (a, b)
    )
    counts = f"{len(first.result.clusters)} and {len(second.result.clusters)}"
    try:
        return compare_pair(a, b), f"the {len(common)} tasks that both have (of {counts}); seeds may differ"
    except (UserError, ValueError):
        return None


def _record(first: RunPart, second: RunPart, comparison: Comparison, basis: str) -> dict[str, Any]:
    success = comparison.success
    return {
        "environment": escape_invisible(first.result.environment),
        "split": escape_invisible(first.split),
        "baseline": {"run": first.run, "label": escape_invisible(first.label), "part": escape_invisible(first.part)},
        "trained": {"run": second.run, "label": escape_invisible(second.label), "part": escape_invisible(second.part)},
        "basis": escape_invisible(basis),
        "verdict": comparison.conclusion,
        "p": finite(comparison.p_corrected),
        "comparisons": comparison.num_comparisons,
        "sentence": escape_invisible(comparison.sentence),
        "evidence": describe_evidence(comparison) if comparison.conclusion in TESTED else "",
        "outlook": escape_invisible(comparison.power_statement),
        "gained": success.gained,
        "lost": success.lost,
        "tasks": success.num_tasks,
        "changes": [
            {"name": escape_invisible(delta.name), "rate": delta.rate, "baseline": finite(delta.baseline),
             "trained": finite(delta.trained), "difference": finite(delta.difference),
             "low": finite(delta.interval.low), "high": finite(delta.interval.high), "p": finite(delta.p_value)}
            for delta in comparison.deltas
        ],
    }  # fmt: skip
