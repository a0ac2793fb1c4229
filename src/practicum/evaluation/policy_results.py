"""What is set side by side: one policy with its results, from a file or a folder of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from practicum.errors import UserError
from practicum.evaluation.result import EvalResult, read_results


@dataclass(frozen=True)
class PolicyResults:
    """One policy with its results, one a panel."""

    name: str
    results: dict[str, EvalResult]

    @property
    def scores(self) -> dict[str, float]:
        """Success by environment, for dominance."""
        return {self.label(examination): examination.success_rate for examination in self.results.values()}

    def label(self, examination: EvalResult) -> str:
        """An environment's name; with its panel where this policy has two panels of it."""
        same = [other for other in self.results.values() if other.environment == examination.environment]
        return examination.environment if len(same) == 1 else f"{examination.environment}@{examination.panel[:8]}"


def read_policy_results(places: Sequence[Path]) -> list[PolicyResults]:
    """A policy for every file or folder that was given; each needs a name of its own."""
    resolved = [place.resolve() for place in places]
    for number, place in enumerate(resolved):
        if place in resolved[:number]:
            raise UserError(f"'{places[number]}' is given twice; a policy cannot be compared with itself.")
    if len(places) < 2:
        raise UserError("Give at least two results to compare, the baseline first.")
    read = [(place, read_results([place])) for place in places]
    names = [_name(place, found) for place, found in read]
    entries = []
    for (place, found), name in zip(read, names, strict=True):
        unique = name if names.count(name) == 1 else f"{name} ({place.name})"
        results: dict[str, EvalResult] = {}
        for examination in found:
            other = results.setdefault(examination.panel, replace(examination, policy=unique))
            if other.source != examination.source:
                raise UserError(
                    f"'{place}' holds two results on panel {examination.panel} ({other.source} and "
                    f"{examination.source}); give them as two policies."
                )
        entries.append(PolicyResults(unique, results))
    if len({entry.name for entry in entries}) != len(entries):
        entries = [
            PolicyResults(str(place), _renamed(e.results, str(place))) for place, e in zip(places, entries, strict=True)
        ]
    return entries


def check_panels(first: EvalResult, second: EvalResult) -> None:
    """Results on different panels are refused."""
    if first.panel == second.panel:
        return
    hint = f"; examine again with --panel {Path(first.source).with_suffix('')}.run/panel.json" if first.source else ""
    raise UserError(
        f"'{first.policy}' was scored on panel {first.panel} ({first.environment}, {first.size} tasks) and "
        f"'{second.policy}' on {second.panel} ({second.environment}, {second.size} tasks); only results on one panel "
        f"can be compared{hint}."
    )


def _name(place: Path, found: Sequence[EvalResult]) -> str:
    """The policy's own name, or the folder's where its results do not agree on one."""
    names = {examination.policy for examination in found}
    return names.pop() if len(names) == 1 else place.name


def _renamed(results: dict[str, EvalResult], name: str) -> dict[str, EvalResult]:
    return {panel: replace(examination, policy=name) for panel, examination in results.items()}
