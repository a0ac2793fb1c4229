"""Why was the improvement small? Founding paper 000's three questions, answered from the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from practicum.data.jsonl import iter_readable_objects
from practicum.evaluation.compare import SCORE, Comparison, compare_pair
from practicum.evaluation.metric_delta import MetricDelta
from practicum.evaluation.result import EvalResult
from practicum.evaluation.stats.trend import trend
from practicum.utils.tables import number

NEAR = 0.05
"""Points below the oracle at which a baseline leaves little to gain."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A question, whether the data say yes (None: they do not say), and in which words."""

    question: str
    likely: bool | None
    answer: str


def diagnose(comparison: Comparison, oracle: EvalResult | None = None) -> list[Diagnosis]:
    return [reward_cause(comparison), data_cause(comparison), oracle_cause(comparison, oracle)]


def reward_cause(comparison: Comparison) -> Diagnosis:
    """Is the reward misspecified? What part of it moved, and did success move with it?"""
    question = "Is the reward misspecified?"
    named = {change.name: change for change in comparison.changes}
    score = named.get(SCORE)
    parts = sorted(
        (change for name, change in named.items() if name.startswith("part ")), key=lambda c: -abs(c.difference)
    )
    if score is None:
        return Diagnosis(question, None, "No score is known for both.")
    moved = "; ".join(f"{c.name} {_moved(c)}" for c in parts[:4]) or "the reward has no named parts"
    told = f"score {_moved(score)}; {moved}."
    rose = score.shown() and score.difference > 0
    if rose and not (comparison.shown and comparison.success.difference > 0):
        return Diagnosis(question, True, f"The reward rose and success did not: {told}")
    if parts and parts[0].shown() and comparison.success.difference * parts[0].difference < 0:
        return Diagnosis(question, True, f"Success and '{parts[0].name}' moved apart: {told}")
    return Diagnosis(question, False, f"Reward and success agree: {told}")


def data_cause(comparison: Comparison) -> Diagnosis:
    """Is data short, in the examination or in training?"""
    change, question = comparison.success, "Is data short?"
    answer = comparison.outlook
    likely: bool | None = False if comparison.shown else True if change.more_tasks else None
    run = comparison.trained.settings.get("run")
    curve = _curve(Path(str(run)) / "metrics.jsonl") if run else []
    if len(curve) >= 6:
        episodes = sum(count for _, _, count in curve)
        half = curve[len(curve) // 2 :]
        line = trend([step for step, _, _ in half], [reward for _, reward, _ in half], change.interval.level)
        rising = line is not None and line.low > 0
        state = "was still rising when training ended" if rising else "had stopped rising"
        answer += f" Training saw {episodes:.0f} episodes, and its reward {state}."
        likely = likely or rising
    return Diagnosis(question, likely, answer)


def oracle_cause(comparison: Comparison, oracle: EvalResult | None) -> Diagnosis:
    """Is the baseline already near the best there is?"""
    question, baseline = "Is the baseline near the oracle?", comparison.success.baseline
    if oracle is None:
        left = f"{100 * (1 - baseline):.1f} points are left below 100 %"
        return Diagnosis(
            question, True if 1 - baseline <= NEAR else None, f"{left}; give the expert's result as --oracle."
        )
    gap = compare_pair(comparison.baseline, oracle).success
    closed = comparison.success.difference / gap.difference if gap.difference > 0 else 1.0
    low, high = 100 * gap.interval.low, 100 * gap.interval.high
    return Diagnosis(
        question,
        gap.difference <= NEAR,
        f"The oracle is {100 * gap.difference:+.1f} points [{low:+.1f}, {high:+.1f}] from the baseline; "
        f"training closed {100 * closed:.0f} % of that.",
    )


def _moved(change: MetricDelta) -> str:
    low, high = number(change.interval.low, True), number(change.interval.high, True)
    return f"{number(change.difference, True)} [{low}, {high}]"


def _curve(path: Path) -> list[tuple[float, float, float]]:
    """Step, mean reward and episodes of every training step that a metrics file has."""
    found = []
    for row in iter_readable_objects(path):
        try:
            found.append((float(row["step"]), float(row["reward/mean"]), float(row.get("rollout/episodes", 0))))
        except (ValueError, KeyError, TypeError):
            continue
    return found
