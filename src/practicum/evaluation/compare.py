"""Policies on the same panel: which metrics differ, whether a difference is significant, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from practicum.errors import UserError
from practicum.evaluation.gates import NEXT_STEPS, Decision, decide
from practicum.evaluation.metric_delta import MetricDelta, finite, metric_delta
from practicum.evaluation.multi_environment import aggregate
from practicum.evaluation.policy_results import PolicyResults, check_panels
from practicum.evaluation.result import AttemptResult, EvalResult, Measure, pass_at_ks
from practicum.evaluation.stats.intervals import LEVEL, paired_difference
from practicum.evaluation.stats.multiple_testing import holm
from practicum.evaluation.stats.paired import bootstrap_test, wilcoxon
from practicum.evaluation.stats.pareto import dominated_by, pareto_score
from practicum.evaluation.stats.unpaired import TTest, cohens_d, cohens_h, t_test

SCORE = "Mean score"


@dataclass(frozen=True)
class Comparison:
    """A trained policy against a baseline on one panel. The first delta is the success rate, which decides."""

    baseline: EvalResult
    trained: EvalResult
    deltas: tuple[MetricDelta, ...]
    p_corrected: float
    num_comparisons: int
    """Number of comparisons that the p-value was corrected for."""

    @property
    def success(self) -> MetricDelta:
        return self.deltas[0]

    @property
    def num_left_out(self) -> int:
        """Tasks of the panel without a score from both policies."""
        return self.baseline.num_tasks - self.success.num_tasks

    @property
    def significant(self) -> bool:
        return self.success.is_significant(self.p_corrected)

    @property
    def conclusion(self) -> str:
        """`better`, `worse` or `no difference shown`."""
        if not self.significant:
            return "no difference shown"
        return "better" if self.success.difference > 0 else "worse"

    @cached_property
    def decision(self) -> Decision:
        return decide(self.success.baseline, self.success.trained, self.significant)

    @cached_property
    def success_flags(self) -> tuple[list[float], list[float]]:
        """Success of every scored attempt as 0 or 1, for the unpaired test that HTDAG prints."""
        first, second = self.baseline.scored, self.trained.scored
        return [float(attempt.success) for attempt in first], [float(attempt.success) for attempt in second]

    @property
    def t_test(self) -> TTest:
        return t_test(*self.success_flags)

    @cached_property
    def sentence(self) -> str:
        """The conclusion with its evidence."""
        delta, level = self.success, f"{100 * self.success.interval.level:g} %"
        if delta.num_tasks == 0:
            return "No task has a score from both policies, so nothing can be compared."
        limits = f"[{100 * delta.interval.low:+.1f}, {100 * delta.interval.high:+.1f}]"
        corrected = (
            f", {self.p_corrected:.2g} after Holm over {self.num_comparisons}" if self.num_comparisons > 1 else ""
        )
        evidence = f"{level}; {delta.test} p = {delta.p_value:.2g}{corrected}; {delta.num_tasks} tasks"
        if self.significant:
            return (
                f"'{self.trained.policy}' is {self.conclusion} than '{self.baseline.policy}' by "
                f"{100 * abs(delta.difference):.1f} points {limits} ({evidence})."
            )
        return (
            f"No difference shown between '{self.baseline.policy}' and '{self.trained.policy}': "
            f"{100 * delta.difference:+.1f} points {limits} ({evidence})."
        )

    @cached_property
    def power_statement(self) -> str:
        """The smallest difference that this number of tasks can show, and how many more the observed one needs."""
        success = self.success
        if success.num_clusters < 2:
            return "Fewer than two tasks show no difference; evaluate on more."
        detectable = (
            f"{success.num_clusters} tasks show a difference of {100 * success.minimum_detectable:.1f} points with a "
            "power of 80 %"
        )
        more = success.num_more_tasks
        if self.significant or more == 0:
            return f"{detectable}."
        if more is None:
            return f"{detectable}; no number of tasks shows a difference of {100 * success.difference:+.1f} points."
        attempts = self.trained.attempts_per_task
        episodes = f" ({more * attempts} episodes per policy)" if attempts > 1 else ""
        return (
            f"{detectable}; if the true difference is {100 * success.difference:+.1f}, about {more} more tasks"
            f"{episodes} would show it."
        )

    def record(self, level: float = LEVEL) -> dict[str, Any]:
        """The comparison as JSON; `level` is that of the intervals of the two scores."""
        before, after = self._by_task()
        differences = [b - a for a, b in zip(before, after, strict=True)]
        _, resampled = paired_difference(before, after, self.success.interval.level)
        t, decision = self.t_test, self.decision
        return {
            "environment": self.baseline.environment,
            "panel": self.baseline.panel,
            "baseline": self.baseline.policy,
            "trained": self.trained.policy,
            "tasks": self.success.num_tasks,
            "left_out": self.num_left_out,
            "verdict": self.conclusion,
            "sentence": self.sentence,
            "p_value": self.success.p_value,
            "p_corrected": self.p_corrected,
            "comparisons": self.num_comparisons,
            "scores": {
                role: {"success_rate": finite(e.success_rate), "low": e.interval(level).low,
                       "high": e.interval(level).high, "level": level, "n": len(e.scored), "errors": len(e.unscored)}
                for role, e in (("baseline", self.baseline), ("trained", self.trained))
            },
            "changes": [delta.record() for delta in self.deltas],
            "tests": {
                self.success.test: self.success.p_value,
                "wilcoxon": float(wilcoxon(differences)),
                "paired bootstrap": float(bootstrap_test(differences)),
                "two-sample t": {"t": finite(t.statistic), "p_value": t.p_value, "note": t.note},
            },
            "bootstrap_interval": [finite(resampled.low), finite(resampled.high)],
            "effect": {"cohens_h": cohens_h(self.success.baseline, self.success.trained) if differences else None,
                       "cohens_d": cohens_d(*self.success_flags)},
            "minimum_detectable_difference": finite(self.success.minimum_detectable),
            "more_tasks_to_settle": self.success.num_more_tasks,
            "gate": decision.gate.name.lower(),
            "gate_improvement": decision.improvement if differences else None,
            "gate_in_points": decision.absolute,
            "next_steps": list(NEXT_STEPS[decision.gate]),
        }  # fmt: skip

    def _by_task(self) -> tuple[list[float], list[float]]:
        """Success of both policies on the tasks that both have a score for."""
        first, second = (result.by_task(_success) for result in (self.baseline, self.trained))
        common = [task for task in first if task in second]
        return [first[task] for task in common], [second[task] for task in common]


@dataclass(frozen=True)
class PolicyComparison:
    """Several policies: the first is the baseline, every other is compared with it on every panel."""

    policies: tuple[PolicyResults, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def panels(self) -> list[str]:
        return list(self.policies[0].results)

    def comparisons_of(self, policy: PolicyResults) -> list[Comparison]:
        """The comparisons of one policy with the baseline, one per panel."""
        results = {id(result) for result in policy.results.values()}
        return [comparison for comparison in self.comparisons if id(comparison.trained) in results]

    def record(self, level: float = LEVEL) -> dict[str, Any]:
        """All policies and comparisons as JSON."""
        dominators = dominated_by({policy.name: policy.scores for policy in self.policies})
        return {
            "format": "practicum comparison 1",
            "baseline": self.policies[0].name,
            "policies": [
                {
                    "policy": policy.name,
                    "sources": [result.source for result in policy.results.values()],
                    "scores": {name: finite(value) for name, value in policy.scores.items()},
                    "aggregate": {k: finite(v) for k, v in asdict(aggregate(list(policy.results.values()))).items()},
                    "dominated_by": dominators[policy.name],
                    "on_frontier": not dominators[policy.name],
                    "pareto_score": pareto_score(policy.scores, self.policies[0].scores),
                }
                for policy in self.policies
            ],
            "comparisons": [comparison.record(level) for comparison in self.comparisons],
        }


def other_metrics(first: EvalResult, second: EvalResult) -> list[tuple[str, bool, Measure]]:
    """The metrics besides success: name, whether it is a rate, and its value for one attempt."""

    def component(name: str) -> Measure:
        return lambda attempt: attempt.components.get(name, 0.0)

    def env_metric(name: str) -> Measure:
        return lambda attempt: attempt.env_metrics.get(name)

    components = sorted({*first.component_names, *second.component_names})
    env_metrics = sorted({*first.env_metric_names, *second.env_metric_names})
    metrics: list[tuple[str, bool, Measure]] = [
        ("Accuracy (score > 0.5)", True, lambda attempt: float(attempt.reward > 0.5)),
        (SCORE, False, lambda attempt: attempt.reward),
        *((f"part {name}", False, component(name)) for name in components),
        *((f"Mean {name}", False, env_metric(name)) for name in env_metrics),
        ("Mean turns", False, lambda attempt: float(attempt.turns)),
        ("Mean tokens", False, lambda attempt: float(attempt.tokens)),
        (
            "Unusable share by task",
            True,
            lambda attempt: attempt.invalid_replies / attempt.turns if attempt.turns else None,
        ),
        ("Mean seconds", False, lambda attempt: attempt.seconds),
    ]
    return metrics


def compare_pair(first: EvalResult, second: EvalResult, alpha: float = 0.05) -> Comparison:
    """Compare two results on one panel, `first` as the baseline; results on different panels are refused."""
    check_panels(first, second)
    clusters, level = {**first.clusters, **second.clusters}, 1 - alpha
    unit_scale = all(0 <= attempt.reward <= 1 for attempt in (*first.scored, *second.scored))
    values = [("Success rate", True, first.by_task(_success), second.by_task(_success))]
    for k in pass_at_ks(min(first.attempts_per_task, second.attempts_per_task))[1:]:
        values.append((f"pass@{k}", True, first.pass_at(k), second.pass_at(k)))
    for name, rate, measure in other_metrics(first, second):
        values.append((name, rate, first.by_task(measure), second.by_task(measure)))
    deltas = [
        metric_delta(name, a, b, clusters, rate=rate, bounded=rate or (name == SCORE and unit_scale), level=level)
        for name, rate, a, b in values
    ]
    others = (delta for delta in deltas[1:] if delta.num_tasks and not _repeats_success(delta, deltas[0]))
    return Comparison(first, second, (deltas[0], *others), deltas[0].p_value, 1)


def compare_policies(policies: Sequence[PolicyResults], alpha: float = 0.05) -> PolicyComparison:
    """Compare every policy with the first on every panel, p-values corrected over all of these (Holm)."""
    baseline, pairs = policies[0], []
    for policy in policies[1:]:
        _check_same_panels(baseline, policy)
        pairs += [compare_pair(baseline.results[panel], policy.results[panel], alpha) for panel in baseline.results]
    corrected = holm([pair.p_corrected for pair in pairs])
    return PolicyComparison(
        tuple(policies),
        tuple(
            replace(pair, p_corrected=p, num_comparisons=len(pairs)) for pair, p in zip(pairs, corrected, strict=True)
        ),
    )


def _check_same_panels(first: PolicyResults, second: PolicyResults) -> None:
    if set(first.results) == set(second.results):
        return
    if len(first.results) == len(second.results) == 1:
        check_panels(*first.results.values(), *second.results.values())
    ours, theirs = ({result.environment for result in policy.results.values()} for policy in (first, second))
    differing = ", ".join(sorted(ours ^ theirs)) or "the same environments, but other tasks, seeds or rules"
    raise UserError(
        f"'{first.name}' and '{second.name}' were not evaluated on the same panels ({differing}); "
        "evaluate both with the same --panel."
    )


def _success(attempt: AttemptResult) -> float:
    return float(attempt.success)


def _repeats_success(delta: MetricDelta, success: MetricDelta) -> bool:
    """Accuracy equals success wherever every reward is 0 or 1; it is then left out."""
    if not delta.name.startswith("Accuracy"):
        return False
    return (delta.baseline, delta.trained, delta.gained) == (success.baseline, success.trained, success.gained)
