"""Rates of a mode in which a manager, a cache and scripts act beside the model, with bootstrap intervals.

Steps are turns on a page: those of a manager are no steps. Model calls are all turns but those in which no model was
asked. Intervals are percentiles over tasks drawn with replacement, since attempts at one task are alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from practicum.evaluation.result import AttemptResult, EvalResult
from practicum.evaluation.stats.intervals import LEVEL, by_cluster, resampled_means
from practicum.utils.arrays import FloatArray
from practicum.utils.tables import percent, percent_interval

NUM_DRAWS = 2_000
SEED = 0
Count = Callable[[AttemptResult], float]


@dataclass(frozen=True, slots=True)
class RateEstimate:
    """A ratio of two sums over the scored attempts, with its interval."""

    value: float
    low: float
    high: float


def num_steps(attempt: AttemptResult) -> float:
    """Return the steps of an attempt: its turns without those of a manager."""
    return attempt.turns - attempt.env_metrics.get("manager_calls", 0.0)


def num_model_calls(attempt: AttemptResult) -> float:
    """Return the turns of an attempt in which a model was called."""
    return attempt.turns - attempt.env_metrics.get("scripted_actions", 0.0)


def _metric(name: str) -> Count:
    return lambda attempt: attempt.env_metrics.get(name, 0.0)


CALLS = "model_calls_per_success"
RATES: dict[str, tuple[Count, Count]] = {
    CALLS: (num_model_calls, lambda attempt: float(attempt.success)),
    "manager_call_rate": (_metric("manager_calls"), num_steps),
    "cache_hit_rate": (_metric("cache_hits"), lambda a: _metric("cache_hits")(a) + _metric("cache_misses")(a)),
    "recovery_rate": (_metric("recoveries"), num_steps),
    "macro_rate": (_metric("macro_actions"), num_steps),
    "action_error_rate": (lambda attempt: attempt.components.get("error", 0.0), num_steps),
}
"""Counts above and below the line of each rate."""


def has_hierarchy(result: EvalResult) -> bool:
    """Whether a part of the hierarchy acted in a mode."""
    return any("scripted_actions" in attempt.env_metrics for attempt in result.scored)


def rate(result: EvalResult, name: str, level: float = LEVEL) -> RateEstimate | None:
    """Return one of `RATES`; None where nothing is below the line."""
    above, below = RATES[name]
    return ratio_estimate(
        [above(attempt) for attempt in result.scored],
        [below(attempt) for attempt in result.scored],
        [attempt.unit for attempt in result.scored],
        level,
    )


def ratio_estimate(
    above: Sequence[float], below: Sequence[float], clusters: Sequence[str], level: float = LEVEL
) -> RateEstimate | None:
    """Return the ratio of two sums with its interval; infinite ends where a draw has nothing below the line."""
    if not sum(below):
        return None
    sums = by_cluster(above, clusters)[2]
    sizes = by_cluster(below, clusters)[2]
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = resampled_means(sums[None, :], sizes, NUM_DRAWS, SEED)[:, 0]
    return RateEstimate(sum(above) / sum(below), *_percentiles(draws, level))


def rate_difference(result: EvalResult, baseline: EvalResult, name: str, level: float = LEVEL) -> RateEstimate | None:
    """Return one of `RATES` minus that of a baseline, over the tasks of both; None where nothing is below a line.

    In every draw both rates are of the same tasks, so the interval is that of a paired comparison.
    """
    above, below = RATES[name]
    units = sorted({item.unit for item in result.scored} & {item.unit for item in baseline.scored})
    index = {unit: position for position, unit in enumerate(units)}
    sums = np.zeros((4, len(units)))
    for row, (policy, count) in enumerate(((result, above), (result, below), (baseline, above), (baseline, below))):
        for attempt in policy.scored:
            if attempt.unit in index:
                sums[row, index[attempt.unit]] += count(attempt)
    if not sums[1].any() or not sums[3].any():
        return None
    draws = resampled_means(sums, None, NUM_DRAWS, SEED)
    with np.errstate(divide="ignore", invalid="ignore"):
        differences = draws[:, 0] / draws[:, 1] - draws[:, 2] / draws[:, 3]
    totals = sums.sum(axis=1)
    low, high = _percentiles(differences, level)
    return RateEstimate(float(totals[0] / totals[1] - totals[2] / totals[3]), low, high)


def _percentiles(draws: FloatArray, level: float) -> tuple[float, float]:
    """The ends of the middle part of the draws; one that is not a number counts as infinite."""
    draws = np.sort(np.where(np.isnan(draws), np.inf, draws))
    tail = (1 - level) / 2
    return float(draws[int(tail * (NUM_DRAWS - 1))]), float(draws[int(np.ceil((1 - tail) * (NUM_DRAWS - 1)))])


def unscored_by_outcome(result: EvalResult) -> str:
    """Return how many attempts ended without a score, by kind: `timeout 2, env_error 1`."""
    kinds = Counter(attempt.outcome.value for attempt in result.unscored)
    return ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))


def hierarchy_table(
    results: Sequence[EvalResult], baseline: EvalResult | None, level: float, cell: Callable[[str], str]
) -> list[str]:
    """Return the lines of a Markdown table of all rates; none where no mode has a hierarchy."""
    if not any(map(has_hierarchy, results)):
        return []
    names = (
        "Model Calls per Success",
        "Difference to Baseline",
        "Manager Calls",
        "Cache Hits",
        "Recoveries",
        "Macros",
        "Failed Actions",
    )
    head = ["Mode", *names, "Unreadable Replies", "Unscored"]
    lines = [
        "",
        "## Parts of the hierarchy",
        "",
        "Per step, but model calls per success and cache hits per look-up. A manager's turns are no steps. The "
        "difference is that of model calls per success, paired by task.",
        "",
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
    ]
    for result in results:
        rates = [_text(rate(result, name, level), name == CALLS) for name in RATES]
        is_other = baseline is not None and result is not baseline
        rates.insert(1, _text(rate_difference(result, baseline, CALLS, level) if is_other and baseline else None, True))
        unreadable = sum(attempt.invalid_replies for attempt in result.scored)
        kinds = unscored_by_outcome(result) or "–"
        lines.append(f"| {' | '.join([cell(result.policy), *rates, str(unreadable), kinds])} |")
    return lines


def _text(estimate: RateEstimate | None, is_count: bool) -> str:
    if estimate is None:
        return "–"
    if not is_count:
        return f"{percent(estimate.value)} {percent_interval(estimate.low, estimate.high)}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"
