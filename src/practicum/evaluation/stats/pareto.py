"""Pareto dominance over environments, as in Affine: better in at least one, worse in none."""

from __future__ import annotations

from collections.abc import Mapping

from practicum.errors import UserError

Scores = Mapping[str, float]
"""A model's score in every environment."""


def dominates(first: Scores, second: Scores) -> bool:
    """first ≥ second in every environment and > in at least one; both must have scores in the same ones."""
    _check({"the first model": first, "the second model": second})
    return all(first[env] >= second[env] for env in second) and any(first[env] > second[env] for env in second)


def dominated_by(models: Mapping[str, Scores]) -> dict[str, list[str]]:
    """For every model the names of those that dominate it; the frontier is the models without any."""
    _check(models)
    return {
        name: [other for other in models if other != name and dominates(models[other], scores)]
        for name, scores in models.items()
    }


def frontier(models: Mapping[str, Scores]) -> list[str]:
    return [name for name, others in dominated_by(models).items() if not others]


def pareto_score(scores: Scores, baseline: Scores) -> float:
    """(wins + ½ ties) / environments, against a baseline: ½ is as good as the baseline."""
    _check({"the model": scores, "the baseline": baseline})
    points = [1.0 if scores[env] > value else 0.5 if scores[env] == value else 0.0 for env, value in baseline.items()]
    return sum(points) / len(points)


def _check(models: Mapping[str, Scores]) -> None:
    """Refuse models with scores in different environments: one evaluated in a single environment must not dominate."""
    names = list(models)
    for name in names:
        if not models[name]:
            raise UserError(f"'{name}' was evaluated in no environment.")
        missing = set(models[names[0]]) ^ set(models[name])
        if missing:
            raise UserError(
                f"'{names[0]}' and '{name}' were not evaluated in the same environments "
                f"({', '.join(sorted(missing))}); dominance needs equal sets."
            )
