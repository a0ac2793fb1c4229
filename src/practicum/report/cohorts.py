"""Episodes that belong together (one part of a run, one environment): their figures, and two of them compared."""

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
from practicum.evaluation.stats.multiple_testing import holm
from practicum.report.index import EpisodeRow
from practicum.utils.escape import number, shown

LEVEL = 0.95
MOST = 40
"""Cohorts that are compared with the first, at most."""


@dataclass(frozen=True)
class Cohort:
    """One policy's episodes in one environment. `frozen`: they were played on a panel that has a name.

    `kept`: a training left them for people to read (the best-paid, or groups of several steps); they are not rated.
    """

    run: str
    label: str
    part: str
    split: str
    examination: EvalResult
    frozen: bool
    kept: bool = False
    uncounted: int = 0

    def record(self) -> dict[str, Any]:
        """One line of the table. Kept episodes get counts and no rates: they stand for no policy."""
        examination = self.examination
        metrics = examination.metrics(LEVEL) if not self.kept else {}
        names = ("success_rate", "success_low", "success_high", "mean_reward", "reward_low", "reward_high",
                 "mean_turns", "mean_tokens", "invalid_reply_rate", "truncated_rate")  # fmt: skip
        return {
            "run": self.run,
            "label": shown(self.label),
            "part": shown(self.part),
            "environment": shown(examination.environment),
            "split": shown(self.split),
            "episodes": len(examination.attempts) + self.uncounted,
            "tasks": len(examination.clusters),
            "scored": len(examination.scored),
            "uncounted": self.uncounted,
            "kept": self.kept,
            "panel": examination.panel if self.frozen else None,
            "outcomes": dict(Counter(s.outcome.value for s in examination.attempts).most_common()),
            **{name: finite(metrics.get(name)) for name in names},
            "parts": {
                shown(name): number(
                    math.fsum(s.components.get(name, 0.0) for s in examination.scored) / len(examination.scored)
                )
                for name in examination.component_names
            },
        }


def cohorts_of(run: str, label: str, rows: Iterable[EpisodeRow]) -> list[Cohort]:
    """A run's episodes by the folder they lie in and their environment."""
    found: dict[tuple[str, str, str], list[EpisodeRow]] = {}
    for row in rows:
        found.setdefault((row.part, row.environment, row.split), []).append(row)
    return [_cohort(run, label, part, split, mine) for (part, _, split), mine in found.items()]


def _cohort(run: str, label: str, part: str, split: str, rows: list[EpisodeRow]) -> Cohort:
    kept = [row.sitting for row in rows if row.counted or not row.sitting.outcome.scored]
    attempts = Counter(sitting.task for sitting in kept)
    name = f"{label} · {part}" if part else label
    examination = EvalResult(
        policy=name,
        environment=rows[0].environment,
        panel="",
        num_tasks=len(attempts),
        attempts_per_task=max(attempts.values(), default=0),
        attempts=tuple(_distinct(kept)),
    )
    return Cohort(run, name, part, split, examination, False, not rows[0].rated, len(rows) - len(kept))


def _distinct(sittings: Sequence[AttemptResult]) -> list[AttemptResult]:
    """Attempts numbered on where two folders hold the same number."""
    seen: Counter[str] = Counter()
    found = []
    for sitting in sittings:
        found.append(replace(sitting, attempt=seen[sitting.task]))
        seen[sitting.task] += 1
    return found


def comparisons(cohorts: Sequence[Cohort]) -> list[dict[str, Any]]:
    """In every environment, each cohort against the first one; p-values corrected over all of these (Holm)."""
    pairs: list[tuple[Cohort, Cohort, Comparison, str]] = []
    first: dict[str, Cohort] = {}
    for cohort in cohorts:
        if cohort.kept or not cohort.examination.scored or len(pairs) >= MOST:
            continue
        baseline = first.setdefault(cohort.examination.environment, cohort)
        if baseline is not cohort:
            made = _pair(baseline, cohort)
            if made is not None:
                pairs.append((baseline, cohort, *made))
    corrected = holm([comparison.p_corrected for _, _, comparison, _ in pairs])
    return [
        _record(a, b, replace(comparison, p_corrected=p, num_comparisons=len(pairs)), basis)
        for (a, b, comparison, basis), p in zip(pairs, corrected, strict=True)
    ]


def _pair(first: Cohort, second: Cohort) -> tuple[Comparison, str] | None:
    """The two on the tasks that both have, and in words what these are; None where there are none."""
    a = replace(first.examination, policy=first.label)
    b = replace(second.examination, policy=second.label)
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
    played = f"{len(first.examination.clusters)} and {len(second.examination.clusters)}"
    try:
        return compare_pair(a, b), f"the {len(common)} tasks that both played (of {played}); seeds may differ"
    except (UserError, ValueError):
        return None


def _record(first: Cohort, second: Cohort, comparison: Comparison, basis: str) -> dict[str, Any]:
    success = comparison.success
    return {
        "environment": shown(first.examination.environment),
        "baseline": {"run": first.run, "label": shown(first.label), "part": shown(first.part)},
        "trained": {"run": second.run, "label": shown(second.label), "part": shown(second.part)},
        "basis": shown(basis),
        "verdict": comparison.conclusion,
        "sentence": shown(comparison.sentence),
        "outlook": shown(comparison.power_statement),
        "gained": success.gained,
        "lost": success.lost,
        "tasks": success.num_tasks,
        "changes": [
            {"name": shown(change.name), "rate": change.rate, "baseline": finite(change.baseline),
             "trained": finite(change.trained), "difference": finite(change.difference),
             "low": finite(change.interval.low), "high": finite(change.interval.high), "p": change.p_value}
            for change in comparison.deltas
        ],
    }  # fmt: skip
