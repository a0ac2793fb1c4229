"""Specs A.16."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from practicum.errors import UserError
from practicum.evaluation.stats.pareto import dominated_by, dominates, frontier, pareto_score

A = {"sat": 0.6, "abd": 0.5}
B = {"sat": 0.6, "abd": 0.4}
C = {"sat": 0.7, "abd": 0.1}


def test_dominance() -> None:
    assert dominates(A, B)
    assert not dominates(B, A)
    assert not dominates(A, dict(A))
    assert not dominates(A, C)
    assert not dominates(C, A)


def test_frontier() -> None:
    assert frontier({"a": A, "b": B, "c": C}) == ["a", "c"]
    assert dominated_by({"a": A, "b": B, "c": C}) == {"a": [], "b": ["a"], "c": []}
    assert frontier({"b": B}) == ["b"]
    assert frontier({"a": A, "again": dict(A)}) == ["a", "again"]


def test_one_environment_does_not_dominate_two() -> None:
    with pytest.raises(UserError, match="same environments \\(abd\\)"):
        dominates({"sat": 0.9}, A)
    with pytest.raises(UserError, match="equal sets"):
        frontier({"a": A, "one": {"sat": 1.0}})
    with pytest.raises(UserError, match="no environment"):
        frontier({"a": {}, "b": {}})


def test_pareto_score() -> None:
    assert pareto_score(A, B) == 0.75
    assert pareto_score(B, A) == 0.25
    assert pareto_score(A, A) == 0.5
    assert pareto_score(C, A) == 0.5


def test_dominance_is_an_order() -> None:
    rng = np.random.default_rng(0)
    models = [dict(zip("xyz", row, strict=True)) for row in rng.integers(0, 3, (12, 3)).tolist()]
    for a, b, c in itertools.product(models, repeat=3):
        assert not (dominates(a, b) and dominates(b, a))
        assert not (dominates(a, b) and dominates(b, c)) or dominates(a, c)
    assert frontier({str(n): model for n, model in enumerate(models)})
