"""The parts of a run (episodes of one policy in one environment): their metrics, and comparisons between them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from practicum.errors import UserError
from practicum.evaluation.compare import Comparison, compare_pair
from practicum.evaluation.metric_delta import finite
from practicum.evaluation.result import AttemptResult, EvalResult
from practicum.evaluation.stats.intervals import LEVEL
from practicum.evaluation.stats.multiple_testing import holm
from practicum.report.index import EpisodeRow
from practicum.report.stage_order import stage_key
from practicum.utils.escape import json_number
from practicum.utils.terminal import escape_invisible

MAX_COMPARISONS = 40
"""Comparisons with one baseline, at most."""
EXAMINATION = "/examination"
"""End of the names of folders in which a stage of a quickstart or pipeline keeps its evaluation."""
MAX_BASELINES = 12
"""Parts that can be chosen as the baseline on the page of a file."""


@dataclass(frozen=True)
class RunPart:
    """One policy's episodes in one environment. `frozen`: they were run on a frozen panel.

    `unrated`: training saved them for reading (the highest rewards, or groups of several steps); they represent no
    policy and get no rates.
    """

    run: str
    label: str
    part: str
    split: str
    result: EvalResult
    frozen: bool
    unrated: bool = False
    num_uncounted: int = 0

    def record(self) -> dict[str, Any]:
        """One row of the table. Unrated episodes get counts and no rates."""
        result = self.result
        metrics = result.metrics(LEVEL) if not self.unrated else {}
        names = ("success_rate", "success_low", "success_high", "mean_reward", "reward_low", "reward_high",
                 "mean_turns", "mean_tokens", "invalid_reply_rate", "truncated_rate")  # fmt: skip
        return {
            "run": self.run,
            "label": escape_invisible(self.label),
            "part": escape_invisible(self.part),
            "environment": escape_invisible(result.environment),
            "split": escape_invisible(self.split),
            "episodes": len(result.attempts) + self.num_uncounted,
            "tasks": len(result.clusters),
            "scored": len(result.scored),
            "uncounted": self.num_uncounted,
            "kept": self.unrated,
            "panel": result.panel if self.frozen else None,
            "outcomes": dict(Counter(s.outcome.value for s in result.attempts).most_common()),
            **{name: finite(metrics.get(name)) for name in names},
            "parts": {
                escape_invisible(name): json_number(
                    math.fsum(s.components.get(name, 0.0) for s in result.scored) / len(result.scored)
                )
                for name in result.component_names
            },
        }


def parts_of_run(run: str, label: str, rows: Iterable[EpisodeRow]) -> list[RunPart]:
    """A run's episodes by folder, environment and split."""
    groups: dict[tuple[str, str, str], list[EpisodeRow]] = {}
    for row in rows:
        groups.setdefault((row.part, row.environment, row.split), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: stage_key(item[0][0]))  # stable: else in the order of the rows
    return [_make_part(run, label, part, split, group) for (part, _, split), group in ordered]


def _make_part(run: str, label: str, part: str, split: str, rows: list[EpisodeRow]) -> RunPart:
    included = [row.result for row in rows if row.counted or not row.result.outcome.scored]
    attempts = Counter(result.task for result in included)
    short = part.removesuffix(EXAMINATION)
    name = f"{label} · {short}" if short else label
    result = EvalResult(
        policy=name,
        environment=rows[0].environment,
        panel="",
        num_tasks=len(attempts),
        attempts_per_task=max(attempts.values(), default=0),
        attempts=tuple(_renumbered(included)),
    )
    return RunPart(run, name, part, split, result, False, not rows[0].rated, len(rows) - len(included))


def _renumbered(results: Sequence[AttemptResult]) -> list[AttemptResult]:
    """Number the attempts at each task again, because two folders may have the same numbers."""
    seen: Counter[str] = Counter()
    renumbered = []
    for result in results:
        renumbered.append(replace(result, attempt=seen[result.task]))
        seen[result.task] += 1
    return renumbered


def compare_parts(parts: Sequence[RunPart], baseline: str | None = None) -> list[dict[str, Any]]:
    """In every environment, compare each part with the baseline and with the one before it.

    `baseline` is a label; environments without such a part, and all of them where it is None, have their first part as
    the baseline. p-values are corrected over all of these comparisons (Holm).
    """
    return _compare_all(parts, baseline, {})


def compare_with_each(parts: Sequence[RunPart]) -> dict[str, list[dict[str, Any]]]:
    """The comparisons for each part that a reader of the page may choose as the baseline, by its label.

    The empty label is for no choice: the first part of every environment.
    """
    results: Results = {}
    labels = dict.fromkeys(part.label for part in parts if not part.unrated and part.result.scored)
    chosen = list(labels)[:MAX_BASELINES] if len(labels) > 1 else []
    by_label = {escape_invisible(label): _compare_all(parts, label, results) for label in chosen}
    return {"": _compare_all(parts, None, results), **by_label}


Results = dict[tuple[int, int], "tuple[Comparison, str] | None"]
"""Comparisons of two parts by their places, so that none is computed twice."""


def _compare_all(parts: Sequence[RunPart], baseline: str | None, results: Results) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[int]] = {}
    for index, part in enumerate(parts):
        if not part.unrated and part.result.scored:
            groups.setdefault((part.result.environment, part.split or "test"), []).append(index)
    found: list[tuple[RunPart, RunPart, Comparison, str]] = []
    for group in groups.values():
        first = next((index for index in group if parts[index].label == baseline), group[0])
        for before, index in zip([None, *group], group, strict=False):
            for other in dict.fromkeys((first, before)):
                if other is None or other == index or (other == before and index == first):
                    continue
                if len(found) >= MAX_COMPARISONS:
                    break
                if (other, index) not in results:
                    results[other, index] = _compare(parts[other], parts[index])
                pair = results[other, index]
                if pair is not None:
                    found.append((parts[other], parts[index], *pair))
    corrected = holm([comparison.p_corrected for _, _, comparison, _ in found])
    return [
        _record(a, b, replace(comparison, p_corrected=p, num_comparisons=len(found)), basis)
        for (a, b, comparison, basis), p in zip(found, corrected, strict=True)
    ]


def _compare(first: RunPart, second: RunPart) -> tuple[Comparison, str] | None:
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
        "baseline": {"run": first.run, "label": escape_invisible(first.label), "part": escape_invisible(first.part)},
        "trained": {"run": second.run, "label": escape_invisible(second.label), "part": escape_invisible(second.part)},
        "basis": escape_invisible(basis),
        "verdict": comparison.conclusion,
        "sentence": escape_invisible(comparison.sentence),
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
