"""Base, SFT and RL side by side: founding paper 003's table, with intervals, and what it does not show."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from practicum.evaluation.compare import Comparison, compare_policies
from practicum.evaluation.metric_delta import finite
from practicum.evaluation.multi_environment import aggregate
from practicum.evaluation.policy_results import PolicyResults, read_policy_results
from practicum.evaluation.result import EvalResult
from practicum.evaluation.stats.intervals import Interval, rate_interval
from practicum.evaluation.stats.pareto import dominated_by
from practicum.utils.tables import table

OVERALL = "Overall"
GROUPS: Mapping[str, str] = {"AgentGym": "agentgym:"}
"""Rows of the paper's table that stand for several environments, and how their names begin."""
SHORT = {"better": "better", "worse": "WORSE", "no difference shown": "–"}
FIGURES = ("accuracy", "mean_reward", "std_reward", "median_reward", "success_rate", "positive_rate")
"""What is told of every environment (the paper's metrics); `positive_rate` is its share of non-zero scores."""


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
    """Every rung's results on the same panels, the first rung first."""

    entries: tuple[PolicyResults, ...]
    steps: tuple[tuple[Comparison, ...], ...]
    """Each rung against the one before, by environment; p-values are corrected over a step's environments (Holm)."""
    level: float

    def examinations(self, entry: PolicyResults) -> list[EvalResult]:
        return list(entry.results.values())

    def rows(self) -> list[tuple[str, list[Cell]]]:
        """A row for every environment, for groups of several, and for all."""
        names = [examination.environment for examination in self.examinations(self.entries[0])]
        parts: list[tuple[str, list[str]]] = [(name, [name]) for name in names]
        for title, beginning in GROUPS.items():
            inside = [name for name in names if name.startswith(beginning)]
            if 1 < len(inside) < len(names):
                parts.append((title, inside))
        if len(names) > 1:
            parts.append((OVERALL, names))
        return [(title, [self.cell(entry, inside) for entry in self.entries]) for title, inside in parts]

    def cell(self, entry: PolicyResults, names: Sequence[str]) -> Cell:
        """Success over all scored episodes of these environments. Pooled, the interval is if anything too wide."""
        scored = [s for e in self.examinations(entry) if e.environment in names for s in e.scored]
        flags = [float(sitting.success) for sitting in scored]
        return Cell(
            sum(flags) / len(flags) if flags else float("nan"),
            rate_interval(flags, [sitting.cluster for sitting in scored], self.level),
        )

    def worse(self) -> list[Comparison]:
        """Environments in which a rung is worse than the one before, more than luck explains."""
        return [found for step in self.steps for found in step if found.conclusion == "worse"]

    def touching(self) -> list[tuple[str, str]]:
        """Neighbouring rungs whose overall intervals touch, or whose later one is the lower."""
        cells = self.rows()[-1][1]
        pairs = zip(self.entries, self.entries[1:], cells, cells[1:], strict=False)
        return [(a.name, b.name) for a, b, first, second in pairs if second.interval.low <= first.interval.high]

    def lines(self) -> list[str]:
        """The table and, below it, what is shown and what is not."""
        verdicts = [{found.trained.environment: SHORT[found.conclusion] for found in step} for step in self.steps]
        changes = [f"{b.name}/{a.name}" for a, b in itertools.pairwise(self.entries)]
        body = [
            [name, *(cell.text for cell in cells), *(step.get(name, "") for step in verdicts)]
            for name, cells in self.rows()
        ]
        found = [
            f"Success with {100 * self.level:g} % intervals; changes are those that McNemar's test shows (Holm, 5 %).",
            table(["Environment", *(entry.name for entry in self.entries), *changes], body),
            "",
        ]
        for entry in self.entries:
            whole = aggregate(self.examinations(entry))
            found.append(
                f"{entry.name}: weighted accuracy {whole.weighted_accuracy:.3f}, weighted mean score "
                f"{whole.weighted_mean_score:.3f}, overall success rate {whole.overall_success_rate:.3f} "
                f"({whole.environments} environments, {whole.episodes} episodes)"
            )
        found += self.findings()
        return found

    def findings(self) -> list[str]:
        touching, worse = self.touching(), self.worse()
        names = " < ".join(entry.name for entry in self.entries)
        if touching:
            said = [f"NOT SHOWN: the overall intervals of {a} and {b} touch." for a, b in touching]
        else:
            said = [f"Shown: {names} overall; the {100 * self.level:g} % intervals do not touch."]
        said += [f"WORSE in {found.trained.environment}: {found.sentence}" for found in worse]
        if not worse:
            said.append("In no environment is a rung worse than the one before (McNemar, Holm, 5 %).")
        return said

    def record(self) -> dict[str, Any]:
        """All of it for machines."""
        scores = {entry.name: entry.scores for entry in self.entries}
        dominators = dominated_by(scores)
        return {
            "level": self.level,
            "rungs": {
                entry.name: {
                    "environments": {e.environment: self._figures(e) for e in self.examinations(entry)},
                    "aggregate": {
                        key: finite(value) for key, value in asdict(aggregate(self.examinations(entry))).items()
                    },
                    "dominated_by": dominators[entry.name],
                }
                for entry in self.entries
            },
            "table": {
                name: {
                    entry.name: [finite(cell.rate), finite(cell.interval.low), finite(cell.interval.high)]
                    for entry, cell in zip(self.entries, cells, strict=True)
                }
                for name, cells in self.rows()
            },
            "comparisons": [
                {"environment": found.trained.environment, "sentence": found.sentence, "verdict": found.conclusion,
                 "p_value": found.success.p_value, "p_corrected": found.p_corrected}
                for step in self.steps for found in step
            ],
            "findings": self.findings(),
        }  # fmt: skip

    def _figures(self, examination: EvalResult) -> dict[str, Any]:
        metrics = examination.metrics(self.level)
        interval = rate_interval(
            [float(s.reward > 0.5) for s in examination.scored], [s.cluster for s in examination.scored], self.level
        )
        return {
            "n": len(examination.scored),
            "errors": len(examination.unscored),
            **{name: metrics[name] for name in FIGURES},
            "confidence_interval": [interval.low, interval.high],
            "success_interval": [metrics["success_low"], metrics["success_high"]],
        }


def read_stage_table(folders: Sequence[Path], level: float) -> StageTable:
    """The rungs whose results lie in these folders, the lowest first."""
    steps = []
    entries: list[PolicyResults] = []
    for below, above in itertools.pairwise(folders):
        found = compare_policies(read_policy_results([below, above]))
        entries = entries or [found.policies[0]]
        entries.append(found.policies[1])
        steps.append(found.comparisons)
    return StageTable(tuple(entries), tuple(steps), level)
