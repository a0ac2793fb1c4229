"""The parts of a run (episodes of one policy in one environment) and their metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from practicum.evaluation.metric_delta import finite
from practicum.evaluation.result import AttemptResult, EvalResult
from practicum.evaluation.stats.intervals import LEVEL
from practicum.report.index import EpisodeRow
from practicum.report.stage_order import stage_key, stage_rank
from practicum.training.validation_results import VALIDATION
from practicum.utils.escape import json_number
from practicum.utils.terminal import escape_invisible

EXAMINATION = "/examination"
"""End of the names of folders in which a stage of a quickstart or pipeline keeps its evaluation."""


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
            "stage": None if self.part == VALIDATION else stage_rank(self.label),
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
