"""Policies on the same panel: which metrics differ, whether a difference is significant, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from practicum.errors import UserError
from practicum.evaluation.comparison_text import comparison_record, describe_conclusion, describe_power
from practicum.evaluation.decoding_settings import (
    Differing,
    describe_differing,
    differing_agent_settings,
    differing_settings,
    is_scripted,
)
from practicum.evaluation.gates import MAX_GATE_UNSCORED_SHARE, Gate, GateDecision, Improvement, decide, lower
from practicum.evaluation.metric_delta import MetricDelta, finite, metric_delta
from practicum.evaluation.multi_environment import aggregate_record, frontier_shares
from practicum.evaluation.policy_results import PolicyResults, check_panels
from practicum.evaluation.result import EvalResult, Measure, pass_at_ks
from practicum.evaluation.stats.intervals import LEVEL, zero_one_share
from practicum.evaluation.stats.multiple_testing import holm, look_penalty
from practicum.evaluation.stats.pareto import dominated_by, pareto_score
from practicum.evaluation.stats.unpaired import TTest, t_test

SUCCESS = "Success rate"
SCORE = "Mean score"
SECONDS = "Mean seconds"
"""Not tested: it says how busy the machine was."""


class Conclusion(StrEnum):
    """The conclusion of a comparison."""

    BETTER = "better"
    WORSE = "worse"
    NOT_SHOWN = "no difference shown"
    NOT_KNOWN = "not known"
    SETTINGS_DIFFER = "settings differ"


@dataclass(frozen=True)
class Comparison:
    """A trained policy against a baseline on one panel. The first delta is the success rate, which decides."""

    baseline: EvalResult
    trained: EvalResult
    deltas: tuple[MetricDelta, ...]
    p_corrected: float
    num_comparisons: int
    """Number of comparisons that the p-value was corrected for."""
    unscored_as_failures: MetricDelta | None = None
    """The success rate with attempts that have no score counted as failures; None where every attempt has one."""
    p_corrected_failures: float = 1.0
    """Its p-value, corrected over the same comparisons."""
    different_settings: bool = False
    """Whether a conclusion is wanted although settings differ."""
    num_looks: int = 1
    """Looks at these policies that were planned, each tested at its share of alpha."""
    modes: bool = False
    """Whether modes of an agent are compared: another format, other tools, prompts or roles are then what is tested."""

    @property
    def success(self) -> MetricDelta:
        return self.deltas[0]

    @property
    def num_left_out(self) -> int:
        """Tasks of the panel without a score from both policies."""
        return self.baseline.num_tasks - self.success.num_tasks

    @cached_property
    def differing(self) -> Differing:
        """Settings that the two evaluations do not share: those of decoding, then those of the agent."""
        return differing_settings(self.baseline, self.trained) | differing_agent_settings(self.baseline, self.trained)

    @property
    def significant(self) -> bool:
        return self.conclusion in (Conclusion.BETTER, Conclusion.WORSE)

    @property
    def conclusion(self) -> Conclusion:
        """`not known` where nothing was scored, or where it depends on what the unscored attempts would have given."""
        differing = differing_settings(self.baseline, self.trained) if self.modes else self.differing
        if differing and not self.different_settings:
            return Conclusion.SETTINGS_DIFFER
        if self.success.num_tasks == 0:
            return Conclusion.NOT_KNOWN
        missing, failures = self.conclusions_both_ways
        return missing if missing is failures else Conclusion.NOT_KNOWN

    @property
    def conclusions_both_ways(self) -> tuple[Conclusion, Conclusion]:
        """With attempts that have no score left out, and with them as failures."""
        missing = _conclude(self.success, self.p_corrected)
        if self.unscored_as_failures is None:
            return missing, missing
        return missing, _conclude(self.unscored_as_failures, self.p_corrected_failures)

    @cached_property
    def decision(self) -> GateDecision:
        """The gate: of the two ways to count attempts without a score, the one that promises less."""
        deltas = [self.success, *([self.unscored_as_failures] if self.unscored_as_failures is not None else [])]
        obstacle, result = self._obstacle(), []
        for delta, conclusion in zip(deltas, self.conclusions_both_ways, strict=False):
            improvement = Improvement(delta.baseline, delta.difference, delta.interval)
            result.append(decide(improvement, conclusion is Conclusion.BETTER, obstacle))
        if self.success.num_tasks == 0 or self.conclusion is Conclusion.SETTINGS_DIFFER:
            return GateDecision(Gate.WITHHELD, result[0].improvement, obstacle)
        return result[0] if len(result) == 1 else lower(*result)

    def _obstacle(self) -> str:
        """Why no gate may be given, or nothing."""
        if self.success.num_tasks == 0:
            return "no task has a score from both policies"
        if is_scripted(self.trained):
            return f"'{self.trained.policy}' is a script of the environment, not a policy to deploy"
        if self.differing:
            return f"the settings differ ({describe_differing(self.differing)}); evaluate both alike"
        for result in (self.baseline, self.trained):
            if result.unscored_share > MAX_GATE_UNSCORED_SHARE:
                return (
                    f"{100 * result.unscored_share:.1f} % of the episodes of '{result.policy}' have no score, and at "
                    f"most {100 * MAX_GATE_UNSCORED_SHARE:g} % may; run `practicum eval` again"
                )
        if self.conclusion is Conclusion.NOT_KNOWN:
            return "the conclusion depends on episodes without a score"
        return ""

    @cached_property
    def success_flags(self) -> tuple[list[float], list[float]]:
        """Success of every scored attempt as 0 or 1, for the unpaired test that HTDAG prints."""
        first, second = self.baseline.scored, self.trained.scored
        return [float(attempt.success) for attempt in first], [float(attempt.success) for attempt in second]

    @property
    def t_test(self) -> TTest:
        return t_test(*self.success_flags)

    @property
    def sentence(self) -> str:
        """The conclusion with its evidence."""
        return describe_conclusion(self)

    @property
    def power_statement(self) -> str:
        """The smallest difference that this number of tasks can show, and what the observed one would need."""
        return describe_power(self)

    def by_task(self) -> tuple[list[float], list[float], list[str]]:
        """Success of both policies on the tasks that both have a score for, and the cluster of each task."""
        first, second = self.baseline.success_by_task(), self.trained.success_by_task()
        common = [task for task in first if task in second]
        clusters = self.baseline.clusters
        return [first[task] for task in common], [second[task] for task in common], [clusters[task] for task in common]

    def reversed(self) -> Comparison:
        """Return this comparison with the trained policy as the baseline."""
        failures = self.unscored_as_failures
        return replace(
            self, baseline=self.trained, trained=self.baseline, deltas=tuple(delta.reversed() for delta in self.deltas),
            unscored_as_failures=None if failures is None else failures.reversed(),
        )  # fmt: skip

    def record(self, level: float = LEVEL) -> dict[str, Any]:
        """The comparison as JSON; `level` is that of the intervals of the two scores."""
        return comparison_record(self, level)


def _conclude(delta: MetricDelta, p_value: float) -> Conclusion:
    if not delta.is_significant(p_value):
        return Conclusion.NOT_SHOWN
    return Conclusion.BETTER if delta.difference > 0 else Conclusion.WORSE


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
        shares = frontier_shares(self.policies)
        return {
            "format": "practicum comparison 1",
            "baseline": self.policies[0].name,
            "policies": [
                {
                    "policy": policy.name,
                    "sources": [result.source for result in policy.results.values()],
                    "scores": {name: finite(value) for name, value in policy.scores.items()},
                    "aggregate": aggregate_record(list(policy.results.values()), level),
                    "dominated_by": dominators[policy.name],
                    "on_frontier": not dominators[policy.name],
                    "frontier_share": shares[policy.name],
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
        (SECONDS, False, lambda attempt: attempt.seconds),
    ]
    return metrics


def compare_pair(
    first: EvalResult,
    second: EvalResult,
    alpha: float = 0.05,
    *,
    different_settings: bool = False,
    looks: int = 1,
    modes: bool = False,
) -> Comparison:
    """Compare two results on one panel, `first` as the baseline; results on different panels are refused.

    Without `different_settings` there is no conclusion where temperature, token limits, formats or other settings of
    the agent differ; with `modes` the agent's may. `looks` is how often the two will be compared in all, with tasks
    added between: each comparison is tested at a share of alpha, so that all together keep it.
    """
    check_panels(first, second)
    clusters, level = {**first.clusters, **second.clusters}, 1 - alpha / look_penalty(looks)
    attempts = min(first.attempts_per_task, second.attempts_per_task)
    deltas = [
        metric_delta(SUCCESS, first.success_by_task(), second.success_by_task(), clusters, rate=True, level=level,
                     share=1.0, attempts=attempts)
    ]  # fmt: skip
    for k in pass_at_ks(attempts)[1:]:
        deltas.append(metric_delta(f"pass@{k}", first.pass_at(k), second.pass_at(k), clusters, rate=True, level=level))
    for name, rate, measure in other_metrics(first, second):
        share = _score_share(first, second) if name == SCORE else None
        deltas.append(
            metric_delta(
                name, first.by_task(measure), second.by_task(measure), clusters, rate=rate,
                bounded=rate or (name == SCORE and share is not None), level=level, share=share,
                attempts=attempts if name == SCORE else 1, tested=name != SECONDS,
            )
        )  # fmt: skip
    failures = None
    if first.unscored or second.unscored:
        failures = metric_delta(
            SUCCESS, first.success_by_task(True), second.success_by_task(True), clusters, rate=True, level=level,
            share=1.0, attempts=attempts,
        )  # fmt: skip
    others = (delta for delta in deltas[1:] if delta.num_tasks and not _repeats_success(delta, deltas[0]))
    return Comparison(
        first, second, (deltas[0], *others), deltas[0].p_value, 1, failures, failures.p_value if failures else 1.0,
        different_settings, looks, modes,
    )  # fmt: skip


def _score_share(first: EvalResult, second: EvalResult) -> float | None:
    """How much the scores are like 0 or 1, where all lie in [0, 1]."""
    rewards = [[attempt.reward for attempt in result.scored] for result in (first, second)]
    if not all(0 <= reward <= 1 for side in rewards for reward in side):
        return None
    return max(zero_one_share(np.asarray(side)) for side in rewards)


def compare_policies(
    policies: Sequence[PolicyResults],
    alpha: float = 0.05,
    *,
    different_settings: bool = False,
    looks: int = 1,
    modes: bool = False,
) -> PolicyComparison:
    """Compare every policy with the first on every panel, p-values corrected over all of these (Holm)."""
    baseline, pairs = policies[0], []
    for policy in policies[1:]:
        _check_same_panels(baseline, policy)
        pairs += [
            compare_pair(baseline.results[panel], policy.results[panel], alpha, different_settings=different_settings,
                         looks=looks, modes=modes)
            for panel in baseline.results
        ]  # fmt: skip
    corrected = holm([pair.p_corrected for pair in pairs])
    with_failures = holm(
        [pair.p_corrected if pair.unscored_as_failures is None else pair.p_corrected_failures for pair in pairs]
    )
    return PolicyComparison(
        tuple(policies),
        tuple(
            replace(pair, p_corrected=p, p_corrected_failures=failures, num_comparisons=len(pairs))
            for pair, p, failures in zip(pairs, corrected, with_failures, strict=True)
        ),
    )


def _check_same_panels(first: PolicyResults, second: PolicyResults) -> None:
    if set(first.results) == set(second.results):
        return
    if len(first.results) == len(second.results) == 1:
        check_panels(*first.results.values(), *second.results.values())
    first_environments, second_environments = (
        {result.environment for result in policy.results.values()} for policy in (first, second)
    )
    differing = (
        ", ".join(sorted(first_environments ^ second_environments))
        or "the same environments, but other tasks, seeds or rules"
    )
    raise UserError(
        f"'{first.name}' and '{second.name}' were not evaluated on the same panels ({differing}); "
        "evaluate both with the same --panel."
    )


def _repeats_success(delta: MetricDelta, success: MetricDelta) -> bool:
    """Accuracy equals success wherever every reward is 0 or 1; it is then left out."""
    if not delta.name.startswith("Accuracy"):
        return False
    return (delta.baseline, delta.trained, delta.gained) == (success.baseline, success.trained, success.gained)
