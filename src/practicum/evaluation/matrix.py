"""Many modes side by side, as in HALO: which are useful, which are only faster, and which errors occurred."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from practicum.data.jsonl import encode
from practicum.data.run_folder import write_atomic
from practicum.errors import UserError, did_you_mean
from practicum.evaluation.compare import Comparison, compare_policies
from practicum.evaluation.decoding_settings import describe_differing
from practicum.evaluation.hierarchy_metrics import hierarchy_table, num_steps, rate
from practicum.evaluation.policy_results import PolicyResults
from practicum.evaluation.result import EvalResult, mean, ratio
from practicum.evaluation.stats.intervals import LEVEL
from practicum.utils.tables import percent, percent_interval

COLUMNS = (
    "mode", "total_tasks", "valid_tasks", "init_or_agent_errors", "successes", "failures", "success_rate",
    "median_steps", "mean_steps", "median_wall_time", "mean_wall_time", "invalid_action_rate", "manager_call_rate",
    "cache_hit_rate", "usefulness_label", "score_delta", "success_low", "success_high", "p_corrected", "shown",
    "model_calls_per_success", "recovery_rate", "macro_rate", "action_error_rate",
)  # fmt: skip
"""HALO's columns, then intervals and the corrected test, then what the parts of a hierarchy did."""
MIN_USEFUL_GAIN = 0.02
"""Success above the baseline's from which a mode is useful."""
MAX_EQUAL_GAP = 0.01
"""Difference of success up to which two modes count as equally successful."""
MIN_STEP_SAVING = 0.10
"""Share of the baseline's median steps that a mode useful for speed saves."""


class Usefulness(StrEnum):
    """HALO's label of a mode, compared with the baseline."""

    USEFUL = "Useful"
    SPEED = "Useful-for-speed"
    NOT = "Not useful"
    HARMFUL = "Harmful"
    UNKNOWN = "N/A"


LEGEND = {
    Usefulness.USEFUL: "success at least 2 points above the baseline",
    Usefulness.SPEED: "success within 1 point of the baseline, and at least 10 % fewer median steps",
    Usefulness.NOT: "neither",
    Usefulness.HARMFUL: "success below the baseline, and the difference is shown",
    Usefulness.UNKNOWN: "the baseline itself, or nothing to compare with",
}


@dataclass(frozen=True)
class MatrixRow:
    """One mode. `delta` is the difference of success rates as a fraction, not in points."""

    result: EvalResult
    label: Usefulness
    delta: float | None
    comparison: Comparison | None

    @staticmethod
    def _shown(comparison: Comparison) -> bool | None:
        """Whether a difference is shown; None where the comparison has no verdict."""
        return None if comparison.conclusion in ("settings differ", "not known") else comparison.significant

    def record(self, level: float = LEVEL) -> dict[str, Any]:
        result, scored = self.result, self.result.scored
        turns = [float(attempt.turns) for attempt in scored]
        steps = [num_steps(attempt) for attempt in scored]
        seconds = [attempt.seconds for attempt in scored if attempt.seconds is not None]
        successes, interval = sum(attempt.success for attempt in scored), result.interval(level)
        return {
            "mode": result.policy,
            "total_tasks": result.num_tasks,
            "valid_tasks": len({attempt.task for attempt in scored}),
            "init_or_agent_errors": len(result.unscored),
            "successes": successes,
            "failures": len(scored) - successes,
            "success_rate": result.success_rate if scored else None,
            "median_steps": statistics.median(steps) if steps else None,
            "mean_steps": mean(steps) if steps else None,
            "median_wall_time": statistics.median(seconds) if seconds else None,
            "mean_wall_time": mean(seconds) if seconds else None,
            "invalid_action_rate": ratio(sum(s.invalid_replies for s in scored), sum(turns)),
            "manager_call_rate": self._rate("manager_call_rate", "manager_calls"),
            "cache_hit_rate": self._rate("cache_hit_rate", "cache_hits"),
            "usefulness_label": self.label.value,
            "score_delta": self.delta,
            "success_low": interval.low,
            "success_high": interval.high,
            "p_corrected": None if self.comparison is None else self.comparison.p_corrected,
            "shown": None if self.comparison is None else self._shown(self.comparison),
            "model_calls_per_success": self._rate("model_calls_per_success", "scripted_actions"),
            "recovery_rate": self._rate("recovery_rate", "recoveries"),
            "macro_rate": self._rate("macro_rate", "macro_actions"),
            "action_error_rate": self._rate("action_error_rate", "scripted_actions"),
        }

    def _rate(self, name: str, counted: str) -> float | None:
        """A rate of the hierarchy; None where the environment does not count what it needs."""
        if not any(counted in attempt.env_metrics for attempt in self.result.scored):
            return None
        value = rate(self.result, name)
        return None if value is None else value.value


def usefulness_label(baseline: tuple[float, float], mode: tuple[float, float], shown_worse: bool = False) -> Usefulness:
    """The label of a mode from its success rate and median steps, and those of the baseline.

    `shown_worse`: a paired test shows that the mode is worse, which HALO's labels do not distinguish from "no better".
    """
    if shown_worse:
        return Usefulness.HARMFUL
    delta = round(mode[0] - baseline[0], 9)  # 0.42 - 0.40 is two points whatever the last bit says
    if delta >= MIN_USEFUL_GAIN:
        return Usefulness.USEFUL
    if abs(delta) <= MAX_EQUAL_GAP and baseline[1] > 0 and round(1 - mode[1] / baseline[1], 9) >= MIN_STEP_SAVING:
        return Usefulness.SPEED
    return Usefulness.NOT


def find_mode(policies: Sequence[PolicyResults], name: str) -> PolicyResults:
    """The mode of this name, or else the only one whose result file is NAME.json."""
    for policy in policies:
        if policy.name == name:
            return policy
    by_file = [policy for policy in policies if name in {Path(r.source).stem for r in policy.results.values()}]
    if len(by_file) == 1:
        return by_file[0]
    names = [
        *(policy.name for policy in policies),
        *(Path(r.source).stem for p in policies for r in p.results.values()),
    ]
    raise UserError(
        f"There is no mode '{name}' among these results ({', '.join(policy.name for policy in policies)})."
        f"{did_you_mean(name, names)}"
    )


def matrix(
    policies: Sequence[PolicyResults], baseline: str | None, alpha: float = 0.05, *, different_settings: bool = False
) -> list[MatrixRow]:
    """One row per mode, in the given order; without a baseline nothing is compared.

    Modes may differ in format, tools, prompts and roles: that is what a matrix compares.
    """
    for policy in policies:
        if len(policy.results) != 1:
            raise UserError(f"'{policy.name}' has results on {len(policy.results)} panels; a matrix is of one panel.")
    first = policies[0] if baseline is None else find_mode(policies, baseline)
    others = [policy for policy in policies if policy is not first]
    compared = compare_policies([first, *others], alpha, different_settings=different_settings, modes=True)
    comparisons = {comparison.trained.policy: comparison for comparison in compared.comparisons}
    (reference,) = first.results.values()
    rows = []
    for policy in policies:
        (result,) = policy.results.values()
        comparison = comparisons.get(policy.name) if baseline is not None else None
        if comparison is None or not result.scored or not reference.scored:
            rows.append(MatrixRow(result, Usefulness.UNKNOWN, None, None))
            continue
        delta = result.success_rate - reference.success_rate
        worse = comparison.conclusion == "worse"
        label = usefulness_label(_success_and_steps(reference), _success_and_steps(result), worse)
        rows.append(MatrixRow(result, label, delta, comparison))
    return rows


def write_matrix(
    folder: Path,
    rows: Sequence[MatrixRow],
    baseline: str | None,
    level: float = LEVEL,
    expected: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write matrix.csv, matrix.md and errors.jsonl into a folder. `expected` are success, median steps and notes that
    someone expects of a mode: a table of its own in matrix.md."""
    records = [row.record(level) for row in rows]
    write_atomic(folder / "matrix.csv", _csv(records).encode())
    text = _markdown(rows, records, baseline, level) + _expected(records, expected or {})
    write_atomic(folder / "matrix.md", text.encode())
    errors = [
        {"mode": row.result.policy, "task_id": s.task, "attempt": s.attempt, "outcome": s.outcome.value,
         "error": s.error}
        for row in rows
        for s in row.result.unscored
    ]  # fmt: skip
    write_atomic(folder / "errors.jsonl", b"".join(map(encode, errors)))


def notes(rows: Sequence[MatrixRow]) -> list[str]:
    """One sentence for every mode whose settings differ from the baseline's, or whose comparison has no verdict;
    one where the times of the modes cannot be compared, because not as many episodes ran at once in each."""
    compared = [row.comparison for row in rows if row.comparison is not None]
    sentences = [
        f"'{c.baseline.policy}' and '{c.trained.policy}' differ in {describe_differing(c.differing)}."
        for c in compared
        if c.differing and c.conclusion != "settings differ"
    ]
    sentences += [c.sentence for c in compared if c.conclusion in ("settings differ", "not known")]
    if len({row.result.settings.get("round_size") for row in rows}) > 1:
        in_rounds = ", ".join(row.result.policy for row in rows if row.result.settings.get("round_size") is not None)
        sentences.append(f"Times cannot be compared: {in_rounds} ran in rounds, with fewer episodes at once.")
    return [*sentences, *(f"'{row.result.policy}': nothing was scored." for row in rows if not row.result.scored)]


def _success_and_steps(result: EvalResult) -> tuple[float, float]:
    return result.success_rate, statistics.median(map(num_steps, result.scored))


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
    plain = _plain
    first = rows[0].result
    goals = f" of {first.num_goals} goals" if first.num_goals is not None else ""
    lines = [
        f"# Matrix: {_cell(first.environment)}",
        "",
        f"Panel `{first.panel}`, {first.num_tasks} tasks{goals}. Baseline: {_cell(baseline) if baseline else 'none'}. "
        f"Intervals: {100 * level:g} %. *Shown* is what a paired test, corrected over all modes, shows.",
        "",
        "| Mode | Valid/Total | Errors | Success Rate | Δ pp | Median Steps | Usefulness | Shown |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        rate = f"{percent(record['success_rate'])} {percent_interval(record['success_low'], record['success_high'])}"
        delta = "–" if record["score_delta"] is None else f"{100 * record['score_delta']:+.1f}"
        shown_text = {None: "–", True: "yes", False: "no"}[record["shown"]]
        lines.append(
            f"| {_cell(record['mode'])} | {record['valid_tasks']}/{record['total_tasks']} | "
            f"{record['init_or_agent_errors']} | {rate} | {delta} | {plain(record['median_steps'])} | "
            f"{record['usefulness_label']} | {shown_text} |"
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
    results = [row.result for row in rows]
    compared_with = next((result for result in results if result.policy == baseline), None)
    lines += hierarchy_table(results, compared_with, level, _cell)
    lines += ["", *(f"* {_cell(note)}" for note in notes(rows))]
    lines += ["", *(f"* **{label.value}**: {meaning}" for label, meaning in LEGEND.items()), "", "## Configuration", ""]
    for row in rows:
        settings = ", ".join(f"{name} {value}" for name, value in row.result.settings.items() if value is not None)
        lines.append(f"* {_cell(row.result.policy)}: {_cell(settings)}; result `{row.result.source}`")
    return "\n".join(lines) + "\n"


def _expected(records: Sequence[dict[str, Any]], expected: Mapping[str, Sequence[str]]) -> str:
    """The table of what was expected of each mode beside what was measured; nothing where nothing was expected."""
    rows = [record for record in records if record["mode"] in expected]
    if not rows:
        return ""
    lines = [
        "",
        "## Expected",
        "",
        "| Mode | Expected Success | Success Rate | Expected Median Steps | Median Steps | Notes |",
        "|---|---|---|---|---|---|",
    ]
    for record in rows:
        success, steps, note = map(_cell, expected[record["mode"]])
        lines.append(
            f"| {_cell(record['mode'])} | {success} | {percent(record['success_rate'])} | {steps} | "
            f"{_plain(record['median_steps'])} | {note} |"
        )
    return "\n".join(lines) + "\n"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
