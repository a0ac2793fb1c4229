"""Many modes side by side (founding paper 002): which are useful, which only faster, and what went wrong."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from practicum.data import store
from practicum.data.jsonl import encode
from practicum.errors import UserError, did_you_mean
from practicum.evaluation.compare import Comparison, compare_policies
from practicum.evaluation.policy_results import PolicyResults
from practicum.evaluation.result import EvalResult, mean, ratio
from practicum.evaluation.stats.intervals import LEVEL

COLUMNS = (
    "mode", "total_tasks", "valid_tasks", "init_or_agent_errors", "successes", "failures", "success_rate",
    "median_steps", "mean_steps", "median_wall_time", "mean_wall_time", "invalid_action_rate", "manager_call_rate",
    "cache_hit_rate", "usefulness_label", "score_delta", "success_low", "success_high", "p_corrected", "shown",
)  # fmt: skip
"""The paper's columns, then the ones that say how sure they are."""
USEFUL_POINTS, SAME_POINTS, FASTER = 0.02, 0.01, 0.10


class Usefulness(StrEnum):
    """What a mode is good for, compared with the baseline."""

    USEFUL = "Useful"
    SPEED = "Useful-for-speed"
    NOT = "Not useful"
    UNKNOWN = "N/A"


LEGEND = {
    Usefulness.USEFUL: "success at least 2 points above the baseline",
    Usefulness.SPEED: "success within 1 point of the baseline, and at least 10 % fewer median steps",
    Usefulness.NOT: "neither",
    Usefulness.UNKNOWN: "the baseline itself, or nothing to compare with",
}


@dataclass(frozen=True)
class MatrixRow:
    """One mode. `delta` in shares of one, not in points."""

    examination: EvalResult
    label: Usefulness
    delta: float | None
    comparison: Comparison | None

    def record(self, level: float = LEVEL) -> dict[str, Any]:
        examination, scored = self.examination, self.examination.scored
        turns = [float(sitting.turns) for sitting in scored]
        seconds = [sitting.seconds for sitting in scored if sitting.seconds is not None]
        successes, interval = sum(sitting.success for sitting in scored), examination.interval(level)
        return {
            "mode": examination.policy,
            "total_tasks": examination.size,
            "valid_tasks": len({sitting.task for sitting in scored}),
            "init_or_agent_errors": len(examination.unscored),
            "successes": successes,
            "failures": len(scored) - successes,
            "success_rate": examination.success_rate if scored else None,
            "median_steps": statistics.median(turns) if turns else None,
            "mean_steps": mean(turns) if turns else None,
            "median_wall_time": statistics.median(seconds) if seconds else None,
            "mean_wall_time": mean(seconds) if seconds else None,
            "invalid_action_rate": ratio(sum(s.invalid for s in scored), sum(turns)),
            "manager_call_rate": _share(examination, "manager_calls", ["turns"]),
            "cache_hit_rate": _share(examination, "cache_hits", ["cache_hits", "cache_misses"]),
            "usefulness_label": self.label.value,
            "score_delta": self.delta,
            "success_low": interval.low,
            "success_high": interval.high,
            "p_corrected": None if self.comparison is None else self.comparison.p_corrected,
            "shown": None if self.comparison is None else self.comparison.shown,
        }


def usefulness(baseline: tuple[float, float], mode: tuple[float, float]) -> Usefulness:
    """The label of a mode's success rate and median steps, against the baseline's."""
    delta = round(mode[0] - baseline[0], 9)  # 0.42 - 0.40 is two points whatever the last bit says
    if delta >= USEFUL_POINTS:
        return Usefulness.USEFUL
    if abs(delta) <= SAME_POINTS and baseline[1] > 0 and round(1 - mode[1] / baseline[1], 9) >= FASTER:
        return Usefulness.SPEED
    return Usefulness.NOT


def matrix(entries: Sequence[PolicyResults], baseline: str | None, alpha: float = 0.05) -> list[MatrixRow]:
    """A row for every mode, in the order given; without a baseline nothing is compared."""
    names = [entry.name for entry in entries]
    if baseline is not None and baseline not in names:
        raise UserError(f"There is no mode '{baseline}' among these results.{did_you_mean(baseline, names)}")
    for entry in entries:
        if len(entry.results) != 1:
            raise UserError(f"'{entry.name}' has results on {len(entry.results)} panels; a matrix is of one panel.")
    first = next((entry for entry in entries if entry.name == baseline), entries[0])
    others = [entry for entry in entries if entry is not first]
    found = {c.trained.policy: c for c in compare_policies([first, *others], alpha).comparisons}
    (reference,) = first.results.values()
    rows = []
    for entry in entries:
        (examination,) = entry.results.values()
        comparison = found.get(entry.name) if baseline is not None else None
        if comparison is None or not examination.scored or not reference.scored:
            rows.append(MatrixRow(examination, Usefulness.UNKNOWN, None, None))
            continue
        delta = examination.success_rate - reference.success_rate
        label = usefulness(_standing(reference), _standing(examination))
        rows.append(MatrixRow(examination, label, delta, comparison))
    return rows


def write_matrix(folder: Path, rows: Sequence[MatrixRow], baseline: str | None, level: float = LEVEL) -> None:
    """matrix.csv, matrix.md and errors.jsonl."""
    records = [row.record(level) for row in rows]
    store.write_atomic(folder / "matrix.csv", _csv(records).encode())
    store.write_atomic(folder / "matrix.md", _markdown(rows, records, baseline, level).encode())
    errors = [
        {"mode": row.examination.policy, "task_id": s.task, "attempt": s.attempt, "outcome": s.outcome.value,
         "error": s.error}
        for row in rows
        for s in row.examination.unscored
    ]  # fmt: skip
    store.write_atomic(folder / "errors.jsonl", b"".join(map(encode, errors)))


def _standing(examination: EvalResult) -> tuple[float, float]:
    return examination.success_rate, statistics.median(sitting.turns for sitting in examination.scored)


def _share(examination: EvalResult, part: str, whole: Sequence[str]) -> float | None:
    """A rate of what a world counts itself (its figures), where it does."""
    having = [s for s in examination.scored if part in s.figures]
    if not having:
        return None
    total = sum(float(s.turns) if name == "turns" else s.figures.get(name, 0.0) for s in having for name in whole)
    return ratio(sum(s.figures[part] for s in having), total)


def _csv(records: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for record in records:
        # A spreadsheet takes a name that begins like a formula for one.
        safe = {"mode": f"'{record['mode']}"} if record["mode"].startswith(("=", "+", "-", "@")) else {}
        writer.writerow({**record, **safe})
    return text.getvalue()


def _markdown(rows: Sequence[MatrixRow], records: Sequence[dict[str, Any]], baseline: str | None, level: float) -> str:
    percent, plain = _percent, _plain
    panel = rows[0].examination
    lines = [
        f"# Matrix: {_cell(panel.environment)}",
        "",
        f"Panel `{panel.panel}`, {panel.size} tasks. Baseline: {_cell(baseline) if baseline else 'none'}. Intervals: "
        f"{100 * level:g} %. *Shown* is what a paired test, corrected over all modes, and a 95 % interval agree on.",
        "",
        "| Mode | Valid/Total | Errors | Success Rate | Δ pp | Median Steps | Usefulness | Shown |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        rate = (
            f"{percent(record['success_rate'])} [{percent(record['success_low'])}, {percent(record['success_high'])}]"
        )
        delta = "–" if record["score_delta"] is None else f"{100 * record['score_delta']:+.1f}"
        shown = {None: "–", True: "yes", False: "no"}[record["shown"]]
        lines.append(
            f"| {_cell(record['mode'])} | {record['valid_tasks']}/{record['total_tasks']} | "
            f"{record['init_or_agent_errors']} | {rate} | {delta} | {plain(record['median_steps'])} | "
            f"{record['usefulness_label']} | {shown} |"
        )
    lines += [
        "",
        "| Mode | Mean Steps | Median Time (s) | Mean Time (s) | Invalid Actions | Manager Calls | Cache Hits | p |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        p = "–" if record["p_corrected"] is None else f"{record['p_corrected']:.3g}"
        lines.append(
            f"| {_cell(record['mode'])} | {plain(record['mean_steps'])} | {plain(record['median_wall_time'])} | "
            f"{plain(record['mean_wall_time'])} | {percent(record['invalid_action_rate'])} | "
            f"{percent(record['manager_call_rate'])} | {percent(record['cache_hit_rate'])} | {p} |"
        )
    lines += ["", *(f"* **{label.value}**: {meaning}" for label, meaning in LEGEND.items()), "", "## Configuration", ""]
    for row in rows:
        told = ", ".join(f"{name} {value}" for name, value in row.examination.settings.items() if value is not None)
        lines.append(f"* {_cell(row.examination.policy)}: {_cell(told)}; result `{row.examination.source}`")
    return "\n".join(lines) + "\n"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
