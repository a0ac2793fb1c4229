"""Base, SFT and RL model side by side: Affine's table, with intervals, and whether the differences are shown."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.evaluation.compare import Comparison, compare_policies
from practicum.evaluation.metric_delta import finite
from practicum.evaluation.multi_environment import aggregate, aggregate_record, overall_interval
from practicum.evaluation.policy_results import PolicyResults, read_policy_results
from practicum.evaluation.result import EvalResult
from practicum.evaluation.stats.intervals import Interval, rate_interval
from practicum.evaluation.stats.pareto import dominated_by
from practicum.utils.tables import table

OVERALL = "Overall"
GROUPS: Mapping[str, str] = {"AgentGym": "agentgym:"}
"""Rows of Affine's table that pool several environments, and the prefix of their names."""
CONCLUSION_TEXT = {"better": "better", "worse": "WORSE"}
"""What the table says of a conclusion; of any other, a dash."""
METRICS = ("accuracy", "mean_reward", "std_reward", "median_reward", "success_rate", "positive_rate")
"""Affine's metrics of every environment; `positive_rate` is the share of non-zero scores."""


@dataclass(frozen=True)
class Cell:
    """A success rate with its interval."""

    rate: float
    interval: Interval

    @property
    def text(self) -> str:
        return f"{self.rate:.3f} [{self.interval.low:.3f}, {self.interval.high:.3f}]"


@dataclass(frozen=True)
class StageTable:
    """The results of the models of all stages on the same panels, in the order of the stages."""

    models: tuple[PolicyResults, ...]
    steps: tuple[tuple[Comparison, ...], ...]
    """Each model against the one before, per environment; p-values are corrected over the environments (Holm)."""
    level: float

    def rows(self) -> list[tuple[str, list[Cell]]]:
        """A row for every environment, for groups of several, and for all."""
        names = [result.environment for result in self.models[0].results.values()]
        groups: list[tuple[str, list[str]]] = [(name, [name]) for name in names]
        for title, prefix in GROUPS.items():
            members = [name for name in names if name.startswith(prefix)]
            if 1 < len(members) < len(names):
                groups.append((title, members))
        if len(names) > 1:
            groups.append((OVERALL, names))
        return [(title, [self.cell(model, members) for model in self.models]) for title, members in groups]

    def cell(self, model: PolicyResults, names: Sequence[str]) -> Cell:
        """Success over all scored episodes of these environments. Pooled, the interval is rather too wide."""
        results = [result for result in model.results.values() if result.environment in names]
        scored = [attempt for result in results for attempt in result.scored]
        flags = [float(attempt.success) for attempt in scored]
        return Cell(
            sum(flags) / len(flags) if flags else float("nan"),
            rate_interval(flags, [attempt.unit for attempt in scored], self.level),
        )

    def worse(self) -> list[Comparison]:
        """Environments in which a model is worse than the one before, by a significant difference."""
        return [pair for step in self.steps for pair in step if pair.conclusion == "worse"]

    def overlapping(self) -> list[tuple[str, str]]:
        """Consecutive models whose overall intervals overlap, or the later of which is the lower one."""
        cells = self.rows()[-1][1]
        pairs = zip(self.models, self.models[1:], cells, cells[1:], strict=False)
        return [(a.name, b.name) for a, b, first, second in pairs if second.interval.low <= first.interval.high]

    def lines(self) -> list[str]:
        """The table, and below it the aggregates and the findings."""
        conclusions = [
            {pair.trained.environment: CONCLUSION_TEXT.get(pair.conclusion, "–") for pair in step}
            for step in self.steps
        ]
        headers = [f"{b.name}/{a.name}" for a, b in itertools.pairwise(self.models)]
        body = [
            [name, *(cell.text for cell in cells), *(step.get(name, "") for step in conclusions)]
            for name, cells in self.rows()
        ]
        lines = [
            f"Success with {100 * self.level:g} % intervals; changes are those that McNemar's test shows (Holm, 5 %).",
            table(["Environment", *(model.name for model in self.models), *headers], body),
            "",
        ]
        for model in self.models:
            results = list(model.results.values())
            total, limits = aggregate(results), overall_interval(results, self.level)
            lines.append(
                f"{model.name}: weighted accuracy {total.weighted_accuracy:.3f} and mean score "
                f"{total.weighted_mean_score:.3f}, overall success {total.overall_success_rate:.3f} "
                f"[{limits.low:.3f}, {limits.high:.3f}], {total.environments} environments, {total.episodes} episodes"
            )
        return [*lines, *self.findings()]

    def findings(self) -> list[str]:
        """One sentence each: whether the order of the models is shown, and where one is worse than the one before."""
        overlapping, worse = self.overlapping(), self.worse()
        names = " < ".join(model.name for model in self.models)
        if overlapping:
            sentences = [f"NOT SHOWN: the overall intervals of {a} and {b} touch." for a, b in overlapping]
        else:
            sentences = [f"Shown: {names} overall; the {100 * self.level:g} % intervals do not touch."]
        sentences += [f"WORSE in {pair.trained.environment}: {pair.sentence}" for pair in worse]
        if not worse:
            sentences.append("In no environment is a model worse than the one before (McNemar, Holm, 5 %).")
        return sentences

    def baseline_record(self) -> dict[str, Any]:
        """The first model's results alone, as JSON."""
        model = self.models[0]
        return {"level": self.level, "model": model.name, **self._model_record(model)}

    def _model_record(self, model: PolicyResults) -> dict[str, Any]:
        results = list(model.results.values())
        return {
            "environments": {result.environment: self._metrics(result) for result in results},
            "aggregate": aggregate_record(results, self.level),
        }

    def record(self) -> dict[str, Any]:
        """All of it as JSON."""
        scores = {model.name: model.scores for model in self.models}
        dominators = dominated_by(scores)
        return {
            "level": self.level,
            "rungs": {
                model.name: {**self._model_record(model), "dominated_by": dominators[model.name]}
                for model in self.models
            },
            "table": {
                name: {
                    model.name: [finite(cell.rate), finite(cell.interval.low), finite(cell.interval.high)]
                    for model, cell in zip(self.models, cells, strict=True)
                }
                for name, cells in self.rows()
            },
            "comparisons": [
                {"environment": pair.trained.environment, "sentence": pair.sentence, "verdict": str(pair.conclusion),
                 "p_value": pair.success.p_value, "p_corrected": pair.p_corrected}
                for step in self.steps for pair in step
            ],
            "findings": self.findings(),
        }  # fmt: skip

    def _metrics(self, result: EvalResult) -> dict[str, Any]:
        metrics = result.metrics(self.level)
        interval = rate_interval(
            [float(attempt.reward > 0.5) for attempt in result.scored],
            [attempt.unit for attempt in result.scored],
            self.level,
        )
        return {
            "n": len(result.scored),
            "errors": len(result.unscored),
            **{name: metrics[name] for name in METRICS},
            "confidence_interval": [interval.low, interval.high],
            "success_interval": [metrics["success_low"], metrics["success_high"]],
        }


def read_stage_table(folders: Sequence[Path], level: float) -> StageTable:
    """The models whose results are in these folders, in the order of the stages."""
    steps = []
    models: list[PolicyResults] = []
    for before, after in itertools.pairwise(folders):
        comparison = compare_policies(read_policy_results([before, after]))
        models = models or [comparison.policies[0]]
        models.append(comparison.policies[1])
        steps.append(comparison.comparisons)
    return StageTable(tuple(models), tuple(steps), level)
