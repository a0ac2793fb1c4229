"""One policy with its results, read from a file or a folder of them; what `compare` and `matrix` compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from practicum.errors import UserError
from practicum.evaluation.result import EvalResult, read_results


@dataclass(frozen=True)
class PolicyResults:
    """One policy with its results by panel hash."""

    name: str
    results: dict[str, EvalResult]

    @property
    def scores(self) -> dict[str, float]:
        """Success rate by environment, for Pareto dominance."""
        return {self.label(result): result.success_rate for result in self.results.values()}

    def label(self, result: EvalResult) -> str:
        """The environment's name; with its panel where this policy has two panels of it."""
        same = [other for other in self.results.values() if other.environment == result.environment]
        return result.environment if len(same) == 1 else f"{result.environment}@{result.panel[:8]}"


def read_policy_results(paths: Sequence[Path]) -> list[PolicyResults]:
    """Read one policy per file or folder, each under a distinct name."""
    resolved = [path.resolve() for path in paths]
    for index, path in enumerate(resolved):
        if path in resolved[:index]:
            raise UserError(f"'{paths[index]}' is given twice; a policy cannot be compared with itself.")
    if len(paths) < 2:
        raise UserError("Give at least two results to compare, the baseline first.")
    read = list(zip(paths, _with_panels([read_results([path]) for path in paths]), strict=True))
    names = [_policy_name(path, results) for path, results in read]
    policies = []
    for (path, results), name in zip(read, names, strict=True):
        unique = name if names.count(name) == 1 else f"{name} ({path.name})"
        policies.append(PolicyResults(unique, _by_panel(path, results, unique)))
    if len({policy.name for policy in policies}) == len(policies):
        return policies
    return [PolicyResults(str(path), _by_panel(path, results, str(path))) for path, results in read]


def _with_panels(read: Sequence[Sequence[EvalResult]]) -> list[list[EvalResult]]:
    """The results of all policies, those of earlier versions under the hash that their panel has now.

    A panel's hash once included the agent's options. A newer result names that hash beside its own.
    """
    newer = {hash: result.panel for results in read for result in results if (hash := _former_panel(result))}
    return [[replace(result, panel=newer.get(result.panel, result.panel)) for result in results] for results in read]


def _former_panel(result: EvalResult) -> str | None:
    former = result.settings.get("panel_with_agent_options")
    return former if isinstance(former, str) else None


def check_panels(first: EvalResult, second: EvalResult) -> None:
    """Refuse results on different panels."""
    if first.panel == second.panel or first.panel == _former_panel(second) or second.panel == _former_panel(first):
        return
    hint = f"; evaluate again with --panel {Path(first.source).with_suffix('')}.run/panel.json" if first.source else ""
    raise UserError(
        f"'{first.policy}' was scored on panel {first.panel} ({first.environment}, {first.num_tasks} tasks) and "
        f"'{second.policy}' on {second.panel} ({second.environment}, {second.num_tasks} tasks); only results on one "
        f"panel can be compared{hint}."
    )


def _policy_name(path: Path, results: Sequence[EvalResult]) -> str:
    """The policy's own name, or the folder's where its results have different ones."""
    names = {result.policy for result in results}
    return names.pop() if len(names) == 1 else path.name


def _by_panel(path: Path, results: Sequence[EvalResult], name: str) -> dict[str, EvalResult]:
    """The results by panel, under the policy's name; two on one panel are refused."""
    by_panel: dict[str, EvalResult] = {}
    for result in results:
        other = by_panel.setdefault(result.panel, replace(result, policy=name))
        if other.source != result.source:
            raise UserError(
                f"'{path}' holds two results on panel {result.panel} ({other.source} and {result.source}); "
                "give them as two policies."
            )
    return by_panel
