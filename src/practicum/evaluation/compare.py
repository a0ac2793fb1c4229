"""Policies side by side on the same panel: what changed, whether that is shown, and what it is enough for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from practicum.errors import UserError
from practicum.evaluation.gates import STEPS, Decision, decide
from practicum.evaluation.metric_delta import MetricDelta, finite, metric_delta
from practicum.evaluation.multi_environment import aggregate
from practicum.evaluation.policy_results import PolicyResults, check_panels
from practicum.evaluation.result import EvalResult, Measure, attempts_shown
from practicum.evaluation.stats.intervals import LEVEL, paired_difference
from practicum.evaluation.stats.multiple_testing import holm
from practicum.evaluation.stats.paired import bootstrap_test, wilcoxon
from practicum.evaluation.stats.pareto import dominated_by, pareto_score
from practicum.evaluation.stats.unpaired import TTest, cohens_d, cohens_h, t_test

SCORE = "Mean score"


@dataclass(frozen=True)
class Comparison:
    """A trained policy against a baseline on one panel. The first change is the success rate, which decides."""

    baseline: EvalResult
    trained: EvalResult
    changes: tuple[MetricDelta, ...]
    p_corrected: float
    comparisons: int
    """How many comparisons the p-value was corrected for."""

    @property
    def success(self) -> MetricDelta:
        return self.changes[0]

    @property
    def left_out(self) -> int:
        """Tasks of the panel that one of the two has no score for."""
        return self.baseline.size - self.success.tasks

    @property
    def shown(self) -> bool:
        return self.success.shown(self.p_corrected)

    @property
    def verdict(self) -> str:
        if not self.shown:
            return "no difference shown"
        return "better" if self.success.difference > 0 else "worse"

    @cached_property
    def decision(self) -> Decision:
        return decide(self.success.baseline, self.success.trained, self.shown)

    @cached_property
    def flags(self) -> tuple[list[float], list[float]]:
        """Every scored attempt's success, for the test that founding paper 000 prints."""
        first, second = self.baseline.scored, self.trained.scored
        return [float(s.success) for s in first], [float(s.success) for s in second]

    @property
    def t_test(self) -> TTest:
        return t_test(*self.flags)

    @cached_property
    def sentence(self) -> str:
        """The verdict in words."""
        metric_delta, level = self.success, f"{100 * self.success.interval.level:g} %"
        range_ = f"[{100 * metric_delta.interval.low:+.1f}, {100 * metric_delta.interval.high:+.1f}]"
        corrected = f", {self.p_corrected:.2g} after Holm over {self.comparisons}" if self.comparisons > 1 else ""
        evidence = f"{level}; {metric_delta.test} p = {metric_delta.p_value:.2g}{corrected}; {metric_delta.tasks} tasks"
        if metric_delta.tasks == 0:
            return "No task has a score from both policies: nothing can be said."
        if self.shown:
            return (
                f"'{self.trained.policy}' is {self.verdict} than '{self.baseline.policy}' by "
                f"{100 * abs(metric_delta.difference):.1f} points {range_} ({evidence})."
            )
        return (
            f"No difference shown between '{self.baseline.policy}' and '{self.trained.policy}': "
            f"{100 * metric_delta.difference:+.1f} points {range_} ({evidence})."
        )

    @cached_property
    def outlook(self) -> str:
        """What these tasks could have shown, and how many more would settle what was seen."""
        success = self.success
        if success.clusters < 2:
            return "So few tasks can show nothing; examine on more."
        could = (
            f"{success.clusters} tasks show a difference of {100 * success.detectable:.1f} points four times in five"
        )
        more = success.more_tasks
        if self.shown or more == 0:
            return f"{could}."
        if more is None:
            return f"{could}; no number of tasks settles a difference of {100 * success.difference:+.1f} points."
        each = f" ({more * self.trained.attempts} episodes a policy)" if self.trained.attempts > 1 else ""
        return f"{could}; if {100 * success.difference:+.1f} is the truth, about {more} more{each} would settle it."

    def record(self, level: float = LEVEL) -> dict[str, Any]:
        """All of it for machines."""
        before, after = self._by_task()
        differences = [b - a for a, b in zip(before, after, strict=True)]
        _, resampled = paired_difference(before, after, self.success.interval.level)
        t, decision = self.t_test, self.decision
        return {
            "environment": self.baseline.environment,
            "panel": self.baseline.panel,
            "baseline": self.baseline.policy,
            "trained": self.trained.policy,
            "tasks": self.success.tasks,
            "left_out": self.left_out,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "p_value": self.success.p_value,
            "p_corrected": self.p_corrected,
            "comparisons": self.comparisons,
            "scores": {
                role: {"success_rate": finite(e.success_rate), "low": e.interval(level).low,
                       "high": e.interval(level).high, "level": level, "n": len(e.scored), "errors": len(e.unscored)}
                for role, e in (("baseline", self.baseline), ("trained", self.trained))
            },
            "changes": [metric_delta.record() for metric_delta in self.changes],
            "tests": {
                self.success.test: self.success.p_value,
                "wilcoxon": float(wilcoxon(differences)),
                "paired bootstrap": float(bootstrap_test(differences)),
                "two-sample t": {"t": finite(t.statistic), "p_value": t.p_value, "note": t.note},
            },
            "bootstrap_interval": [finite(resampled.low), finite(resampled.high)],
            "effect": {"cohens_h": cohens_h(self.success.baseline, self.success.trained) if differences else None,
                       "cohens_d": cohens_d(*self.flags)},
            "minimum_detectable_difference": finite(self.success.detectable),
            "more_tasks_to_settle": self.success.more_tasks,
            "gate": decision.gate.name.lower(),
            "gate_improvement": decision.improvement if differences else None,
            "gate_in_points": decision.absolute,
            "next_steps": list(STEPS[decision.gate]),
        }  # fmt: skip

    def _by_task(self) -> tuple[list[float], list[float]]:
        first, second = (e.by_task(lambda s: float(s.success)) for e in (self.baseline, self.trained))
        common = [task for task in first if task in second]
        return [first[task] for task in common], [second[task] for task in common]


@dataclass(frozen=True)
class PolicyComparison:
    """All policies that were given: the first is the baseline, every other is compared with it on every panel."""

    entries: tuple[PolicyResults, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def panels(self) -> list[str]:
        return list(self.entries[0].results)

    def of(self, entry: PolicyResults) -> list[Comparison]:
        mine = {id(examination) for examination in entry.results.values()}
        return [comparison for comparison in self.comparisons if id(comparison.trained) in mine]

    def record(self, level: float = LEVEL) -> dict[str, Any]:
        scores = {entry.name: entry.scores for entry in self.entries}
        dominators = dominated_by(scores)
        return {
            "format": "practicum comparison 1",
            "baseline": self.entries[0].name,
            "policies": [
                {
                    "policy": entry.name,
                    "sources": [examination.source for examination in entry.results.values()],
                    "scores": {name: finite(value) for name, value in entry.scores.items()},
                    "aggregate": {k: finite(v) for k, v in asdict(aggregate(list(entry.results.values()))).items()},
                    "dominated_by": dominators[entry.name],
                    "on_frontier": not dominators[entry.name],
                    "pareto_score": pareto_score(entry.scores, self.entries[0].scores),
                }
                for entry in self.entries
            ],
            "comparisons": [comparison.record(level) for comparison in self.comparisons],
        }


def measures(first: EvalResult, second: EvalResult) -> list[tuple[str, bool, Measure]]:
    """What is compared besides success: a name, whether it is a share, and how it is read off an attempt."""

    def part(name: str) -> Measure:
        return lambda s: s.components.get(name, 0.0)

    def figure(name: str) -> Measure:
        return lambda s: s.figures.get(name)

    both = [
        ("Accuracy (score > 0.5)", True, lambda s: float(s.reward > 0.5)),
        (SCORE, False, lambda s: s.reward),
        *((f"part {n}", False, part(n)) for n in sorted({*first.names("parts"), *second.names("parts")})),
        *((f"Mean {n}", False, figure(n)) for n in sorted({*first.names("figures"), *second.names("figures")})),
        ("Mean turns", False, lambda s: float(s.turns)),
        ("Mean tokens", False, lambda s: float(s.tokens)),
        ("Unusable share by task", True, lambda s: s.invalid / s.turns if s.turns else None),
        ("Mean seconds", False, lambda s: s.seconds),
    ]
    return list(both)


def compare_pair(first: EvalResult, second: EvalResult, alpha: float = 0.05) -> Comparison:
    """Two results on one panel; results on different panels are refused."""
    check_panels(first, second)
    clusters, level = {**first.clusters, **second.clusters}, 1 - alpha
    unit = all(0 <= sitting.reward <= 1 for sitting in (*first.scored, *second.scored))
    found = [("Success rate", True, first.by_task(_success), second.by_task(_success))]
    for k in attempts_shown(min(first.attempts, second.attempts))[1:]:
        found.append((f"pass@{k}", True, first.passes(k), second.passes(k)))
    for name, rate, measure in measures(first, second):
        found.append((name, rate, first.by_task(measure), second.by_task(measure)))
    changes = [
        metric_delta(name, a, b, clusters, rate=rate, bounded=rate or (name == SCORE and unit), level=level)
        for name, rate, a, b in found
    ]
    kept = (changes[0], *(c for c in changes[1:] if c.tasks and not _says_nothing_new(c, changes[0])))
    return Comparison(first, second, kept, changes[0].p_value, 1)


def compare_policies(entries: Sequence[PolicyResults], alpha: float = 0.05) -> PolicyComparison:
    """Every policy against the first on every panel, p-values corrected over all of these (Holm)."""
    baseline, pairs = entries[0], []
    for entry in entries[1:]:
        if set(entry.results) != set(baseline.results):
            if len(entry.results) == len(baseline.results) == 1:
                check_panels(*baseline.results.values(), *entry.results.values())
            ours, theirs = ({e.environment for e in x.results.values()} for x in (baseline, entry))
            odd = ", ".join(sorted(ours ^ theirs)) or "the same environments, but other tasks, seeds or rules"
            raise UserError(
                f"'{baseline.name}' and '{entry.name}' were not examined on the same panels ({odd}); "
                "examine both with the same --panel."
            )
        pairs += [compare_pair(baseline.results[panel], entry.results[panel], alpha) for panel in baseline.results]
    corrected = holm([pair.p_corrected for pair in pairs])
    return PolicyComparison(
        tuple(entries),
        tuple(replace(pair, p_corrected=p, comparisons=len(pairs)) for pair, p in zip(pairs, corrected, strict=True)),
    )


def _success(sitting: Any) -> float:
    return float(sitting.success)


def _says_nothing_new(metric_delta: MetricDelta, success: MetricDelta) -> bool:
    """Accuracy is success wherever a reward is 0 or 1; parts that both policies lack are no rows."""
    if metric_delta.name.startswith("Accuracy"):
        return (metric_delta.baseline, metric_delta.trained, metric_delta.gained) == (
            success.baseline,
            success.trained,
            success.gained,
        )
    return False
