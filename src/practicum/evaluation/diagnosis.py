"""Possible causes of a small improvement: HTDAG's three questions, answered from the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from practicum.data.jsonl import iter_readable_objects
from practicum.evaluation.compare import SCORE, Comparison, compare_pair
from practicum.evaluation.comparison_text import why_no_number_of_tasks
from practicum.evaluation.metric_delta import MetricDelta
from practicum.evaluation.result import EvalResult
from practicum.evaluation.stats.trend import trend
from practicum.utils.tables import number

MAX_ORACLE_GAP = 0.05
"""Success below the oracle's up to which a baseline leaves little to gain."""
MIN_CURVE_STEPS = 6
"""Training steps that a trend is fitted to, at least."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A question, its answer by the data (None: undecided), and the figures."""

    question: str
    likely: bool | None
    answer: str


def diagnose(comparison: Comparison, oracle: EvalResult | None = None) -> list[Diagnosis]:
    """The reward, the amount of data and the distance to the oracle as causes."""
    return [diagnose_reward(comparison), diagnose_data(comparison), diagnose_oracle(comparison, oracle)]


def diagnose_reward(comparison: Comparison) -> Diagnosis:
    """Is the reward misspecified? Which of its components changed, and did success change with it?"""
    question = "Is the reward misspecified?"
    deltas = {delta.name: delta for delta in comparison.deltas}
    score = deltas.get(SCORE)
    components = sorted(
        (delta for name, delta in deltas.items() if name.startswith("part ")), key=lambda delta: -abs(delta.difference)
    )
    if score is None:
        return Diagnosis(question, None, "No task has a score from both policies.")
    changed = "; ".join(f"{delta.name} {_difference(delta)}" for delta in components[:4])
    figures = f"score {_difference(score)}; {changed or 'the reward has no named parts'}."
    rose = score.is_significant() and score.difference > 0
    if rose and not (comparison.significant and comparison.success.difference > 0):
        return Diagnosis(question, True, f"The reward rose and success did not: {figures}")
    if components and components[0].is_significant() and comparison.success.difference * components[0].difference < 0:
        return Diagnosis(
            question, True, f"Success and '{components[0].name}' changed in opposite directions: {figures}"
        )
    return Diagnosis(question, False, f"Reward and success agree: {figures}")


def diagnose_data(comparison: Comparison) -> Diagnosis:
    """Are there too few data, in the evaluation or in training?"""
    success, question = comparison.success, "Is data short?"
    needed = success.num_tasks_needed
    size = f"a difference of {100 * success.difference:+.1f} points"
    answer = (
        f"{why_no_number_of_tasks(success).capitalize()}."
        if needed is None
        else f"About {needed} tasks show {size} with a power of 80 %; there are {success.num_tasks}."
    )
    likely: bool | None = False if comparison.significant else True if success.num_more_tasks else None
    run = comparison.trained.settings.get("run")
    curve = _training_curve(Path(str(run)) / "metrics.jsonl") if run else []
    if len(curve) >= MIN_CURVE_STEPS:
        episodes = sum(count for _, _, count in curve)
        half = curve[len(curve) // 2 :]
        line = trend([step for step, _, _ in half], [reward for _, reward, _ in half], success.interval.level)
        rising = line is not None and line.low > 0
        state = "was still rising when training ended" if rising else "had stopped rising"
        answer += f" Training saw {episodes:.0f} episodes, and its reward {state}."
        likely = likely or rising
    return Diagnosis(question, likely, answer)


def diagnose_oracle(comparison: Comparison, oracle: EvalResult | None) -> Diagnosis:
    """Is the baseline already near the best possible?"""
    question, baseline = "Is the baseline near the oracle?", comparison.success.baseline
    if oracle is None:
        gap_text = f"{100 * (1 - baseline):.1f} points are left below 100 %"
        likely = True if 1 - baseline <= MAX_ORACLE_GAP else None
        return Diagnosis(question, likely, f"{gap_text}; give the expert's result as --oracle.")
    gap = compare_pair(comparison.baseline, oracle).success
    low, high = 100 * gap.interval.low, 100 * gap.interval.high
    return Diagnosis(
        question,
        gap.difference <= MAX_ORACLE_GAP,
        f"The oracle is {100 * gap.difference:+.1f} points [{low:+.1f}, {high:+.1f}] from the baseline; "
        f"{_closed(comparison.success.difference, gap.difference)}.",
    )


def _closed(gained: float, gap: float) -> str:
    """What training did about the distance to the oracle."""
    if gained < 0:
        return f"training went {-100 * gained:.1f} points the other way"
    if gap <= 0:
        return "there is no distance that training could close"
    return f"training closed {100 * gained / gap:.0f} % of that"


def _difference(delta: MetricDelta) -> str:
    low, high = number(delta.interval.low, True), number(delta.interval.high, True)
    return f"{number(delta.difference, True)} [{low}, {high}]"


def _training_curve(path: Path) -> list[tuple[float, float, float]]:
    """Step, mean reward and episodes of every training step in a metrics file; damaged lines are skipped."""
    curve = []
    for row in iter_readable_objects(path):
        try:
            curve.append((float(row["step"]), float(row["reward/mean"]), float(row.get("rollout/episodes", 0))))
        except (ValueError, KeyError, TypeError):
            continue
    return curve
