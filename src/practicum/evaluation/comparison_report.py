"""A comparison of result files with the possible causes of a small difference: all that `practicum compare` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from practicum.errors import UserError
from practicum.evaluation.compare import Comparison, PolicyComparison, compare_pair, compare_policies
from practicum.evaluation.diagnosis import Diagnosis, diagnose
from practicum.evaluation.policy_results import PolicyResults, check_panels, read_policy_results
from practicum.evaluation.result import EvalResult, read_result
from practicum.evaluation.stats.intervals import LEVEL


@dataclass(frozen=True)
class ComparisonReport:
    """Policies compared with the first of them, and the diagnoses of each comparison, in the same order."""

    comparison: PolicyComparison
    diagnoses: tuple[tuple[Diagnosis, ...], ...]
    level: float = LEVEL
    """Level of the intervals of the scores themselves."""

    def record(self) -> dict[str, Any]:
        """The JSON of `practicum compare --json`."""
        record = self.comparison.record(self.level)
        for comparison, diagnoses in zip(record["comparisons"], self.diagnoses, strict=True):
            comparison["causes"] = [asdict(diagnosis) for diagnosis in diagnoses]
        return record


def compare(
    baseline: EvalResult | str | Path,
    trained: EvalResult | str | Path,
    *,
    alpha: float = 0.05,
    different_settings: bool = False,
    looks: int = 1,
) -> Comparison:
    """Compare two policies on the same panel, task by task. Either is a result or the path of its file.

    `alpha` is the accepted chance of a false finding, over `looks` comparisons with tasks added between. Results on
    different panels are an error; results sampled with different settings have no conclusion without
    `different_settings`.
    """
    check_options(alpha, LEVEL, looks)
    first, second = (result if isinstance(result, EvalResult) else read_result(Path(result))
                     for result in (baseline, trained))  # fmt: skip
    return compare_pair(first, second, alpha, different_settings=different_settings, looks=looks)


def check_options(alpha: float, level: float, looks: int) -> None:
    """Refuse numbers out of range."""
    for name, value in (("alpha", alpha), ("level", level)):
        if not 0 < value < 1:
            raise UserError(f"--{name} {value:g} must lie between 0 and 1.")
    if looks < 1:
        raise UserError(f"--looks {looks} must be at least 1: it is how often these policies will be compared.")


def compare_results(
    results: Sequence[PolicyResults] | Sequence[Path],
    *,
    alpha: float = 0.05,
    level: float = LEVEL,
    oracle: EvalResult | Path | None = None,
    different_settings: bool = False,
    looks: int = 1,
) -> ComparisonReport:
    """Compare every policy with the first one on every panel, and diagnose each difference.

    `results` are policies, or paths of result files or folders of them. `alpha` is the accepted chance of a false
    finding, over all `looks`. `oracle` is the expert's result on one of the panels.
    """
    check_options(alpha, level, looks)
    paths = [result for result in results if isinstance(result, Path)]
    policies = [result for result in results if isinstance(result, PolicyResults)]
    comparison = compare_policies(
        read_policy_results(paths) if paths else policies, alpha, different_settings=different_settings, looks=looks
    )
    best = read_result(oracle) if isinstance(oracle, Path) else oracle
    diagnoses = tuple(tuple(_diagnose(pair, best)) for pair in comparison.comparisons)
    return ComparisonReport(comparison, diagnoses, level)


def _diagnose(comparison: Comparison, oracle: EvalResult | None) -> list[Diagnosis]:
    """With the oracle where it is of the same environment; then it must be on the same panel."""
    if oracle is None or oracle.environment != comparison.baseline.environment:
        return diagnose(comparison)
    check_panels(comparison.baseline, oracle)
    return diagnose(comparison, oracle)
