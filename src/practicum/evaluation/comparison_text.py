"""A comparison in words and as JSON: the conclusion, the power of the evaluation, and all figures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from practicum.evaluation.decoding_settings import describe_differing
from practicum.evaluation.gates import NEXT_STEPS
from practicum.evaluation.metric_delta import EXACT_MCNEMAR, MCNEMAR, MetricDelta, finite
from practicum.evaluation.stats.intervals import by_cluster
from practicum.evaluation.stats.multiple_testing import look_penalty
from practicum.evaluation.stats.paired import bootstrap_test, mcnemar_exact, wilcoxon
from practicum.evaluation.stats.unpaired import cohens_d, cohens_h

if TYPE_CHECKING:
    from practicum.evaluation.compare import Comparison


def why_no_number_of_tasks(success: MetricDelta) -> str:
    """What is said where `num_tasks_needed` is None."""
    size = "0" if success.difference == 0 else f"too small ({100 * success.difference:+.2g} points)"
    return f"the measured difference is {size}, so no number of tasks can be given"


def describe_conclusion(comparison: Comparison) -> str:
    """The conclusion with its evidence, in one or two sentences."""
    delta, conclusion = comparison.success, comparison.conclusion
    baseline, trained = f"'{comparison.baseline.policy}'", f"'{comparison.trained.policy}'"
    if delta.num_tasks == 0:
        return "No task has a score from both policies, so nothing can be compared."
    differing = describe_differing(comparison.differing)
    if conclusion == "settings differ":
        return (
            f"{baseline} and {trained} were sampled with different settings ({differing}), so a difference says "
            "nothing about the policies. Evaluate both alike, or give --different-settings."
        )
    if conclusion == "not known":
        return _describe_not_known(comparison)
    evidence = f"{points(delta)} ({describe_evidence(comparison)})"
    settings = f" The settings differ: {differing}." if differing else ""
    if comparison.significant:
        size = f"{100 * abs(delta.difference):.1f} points {_limits(delta)} ({describe_evidence(comparison)})"
        return f"{trained} is {conclusion} than {baseline} by {size}.{settings}"
    return f"No difference shown between {baseline} and {trained}: {evidence}.{settings}"


def _describe_not_known(comparison: Comparison) -> str:
    failures = comparison.unscored_as_failures
    assert failures is not None
    counts = [len(result.unscored) for result in (comparison.baseline, comparison.trained)]
    missing, as_failures = comparison.conclusions_both_ways
    return (
        f"Not known: {counts[0]} and {counts[1]} attempts have no score, and they decide. Left out: "
        f"{points(comparison.success)}, {missing}; as failures: {points(failures)}, {as_failures}. Run `practicum "
        "eval` again for those."
    )


def points(delta: MetricDelta) -> str:
    return f"{100 * delta.difference:+.1f} points {_limits(delta)}"


def _limits(delta: MetricDelta) -> str:
    return f"[{100 * delta.interval.low:+.1f}, {100 * delta.interval.high:+.1f}]"


def describe_evidence(comparison: Comparison) -> str:
    """The level, the test with its p-value, corrected where there are several comparisons, and the tasks."""
    delta = comparison.success
    corrected = (
        f", {comparison.p_corrected:.2g} after Holm over {comparison.num_comparisons} comparisons"
        if comparison.num_comparisons > 1
        else ""
    )
    return (
        f"{100 * delta.interval.level:.3g} %; {delta.test} p = {delta.p_value:.2g}{corrected}; {describe_tasks(delta)}"
    )


def describe_tasks(delta: MetricDelta) -> str:
    """`300 tasks`, or `300 tasks of 42 goals` where tasks are not independent."""
    goals = f" of {delta.num_clusters} goals" if delta.num_clusters < delta.num_tasks else ""
    return f"{delta.num_tasks} tasks{goals}"


def describe_power(comparison: Comparison) -> str:
    """The smallest difference that these tasks can show, and what the observed one would need.

    Adding tasks and testing again until a difference is shown finds one where there is none: the sentence says how many
    looks were planned, and offers more tasks only where more looks were.
    """
    success = comparison.success
    if success.num_clusters < 2:
        return "Fewer than two independent tasks show no difference; evaluate on more."
    smallest = success.minimum_detectable
    detectable = (
        f"{describe_tasks(success)} can show differences of at least {100 * smallest:.1f} points (power 80 %)"
        if math.isfinite(smallest)
        else f"{describe_tasks(success)} can show no difference, however large (power 80 %)"
    )
    if comparison.significant:
        return f"{detectable}." if math.isfinite(smallest) else f"{describe_tasks(success)} are few: evaluate on more."
    needed, more = success.num_tasks_needed, success.num_more_tasks
    if needed is None or more is None:
        return f"{detectable}; {why_no_number_of_tasks(success)}."
    looks, alpha = comparison.num_looks, 100 * success.alpha
    if looks > 1:
        return (
            f"{detectable}; if the true difference is {100 * success.difference:+.1f}, about {more} more tasks would "
            f"show it. Each of the {looks} planned looks is tested at {alpha:.2g} %, so that all together keep "
            f"{alpha * look_penalty(looks):.2g} %."
        )
    return (
        f"{detectable}; a true difference of {100 * success.difference:+.1f} needs about {needed} tasks. This look "
        f"used the whole {alpha:.2g} %: to add tasks and look again, plan the looks with --looks from the first one "
        "on, or decide by a new panel alone."
    )


def comparison_record(comparison: Comparison, level: float) -> dict[str, Any]:
    """The comparison as JSON; `level` is that of the intervals of the two scores."""
    success, decision = comparison.success, comparison.decision
    before, after, clusters = comparison.by_task()
    t, improvement = comparison.t_test, decision.improvement
    return {
        "environment": comparison.baseline.environment,
        "panel": comparison.baseline.panel,
        "baseline": comparison.baseline.policy,
        "trained": comparison.trained.policy,
        "tasks": success.num_tasks,
        "goals": success.num_clusters,
        "left_out": comparison.num_left_out,
        "verdict": str(comparison.conclusion),
        "sentence": comparison.sentence,
        "p_value": success.p_value,
        "p_corrected": comparison.p_corrected,
        "comparisons": comparison.num_comparisons,
        "looks": comparison.num_looks,
        "differing_settings": {name: list(pair) for name, pair in comparison.differing.items()},
        "unscored_as_failures": _failures_record(comparison),
        "scores": {
            role: {"success_rate": finite(e.success_rate), "low": e.interval(level).low,
                   "high": e.interval(level).high, "level": level, "n": len(e.scored), "errors": len(e.unscored)}
            for role, e in (("baseline", comparison.baseline), ("trained", comparison.trained))
        },
        "changes": [delta.record() for delta in comparison.deltas],
        "tests": _tests(success, [b - a for a, b in zip(before, after, strict=True)], clusters)
        | {"two-sample t": {"t": finite(t.statistic), "p_value": t.p_value, "note": t.note}},
        "effect": {"cohens_h": cohens_h(success.baseline, success.trained) if before else None,
                   "cohens_d": cohens_d(*comparison.success_flags)},
        "minimum_detectable_difference": finite(success.minimum_detectable),
        "tasks_needed": success.num_tasks_needed,
        "more_tasks_to_settle": success.num_more_tasks if comparison.num_looks > 1 else None,
        "gate": decision.gate.name.lower(),
        "gate_sentence": decision.sentence,
        "gate_improvement": (improvement.difference / improvement.relative_base) if before else None,
        "gate_error_reduction": improvement.error_reduction if before else None,
        "gate_in_points": improvement.relative is None,
        "next_steps": list(NEXT_STEPS[decision.gate]),
    }  # fmt: skip


def _failures_record(comparison: Comparison) -> dict[str, Any] | None:
    if comparison.unscored_as_failures is None:
        return None
    verdict = str(comparison.conclusions_both_ways[1])
    return {**comparison.unscored_as_failures.record(), "verdict": verdict,
            "p_corrected": comparison.p_corrected_failures}  # fmt: skip


def _tests(success: MetricDelta, differences: list[float], clusters: list[str]) -> dict[str, Any]:
    """P-values of the test that decides and of others; tasks of one goal are one difference, their mean."""
    _, sizes, totals = by_cluster(differences, clusters)
    means = totals / sizes
    is_mcnemar = success.test in (MCNEMAR, EXACT_MCNEMAR)
    exact = {EXACT_MCNEMAR: mcnemar_exact(success.gained or 0, success.lost or 0)} if is_mcnemar else {}
    return {
        success.test: success.p_value,
        **exact,
        "wilcoxon": float(wilcoxon(means)),
        "paired bootstrap": float(bootstrap_test(means)),
    }
