"""Golden values of the loss aggregation modes, worked out by hand."""

from __future__ import annotations

import pytest

from practicum.algorithms.losses import AGGREGATIONS, token_weights
from practicum.errors import UserError

GOLDEN = [
    ("token-mean", [[1.0], [1.0, 1.0]], 6.0),
    ("seq-mean-token-mean", [[0.5], [0.25, 0.25]], 2.0),
    ("seq-mean-token-sum", [[1.0], [1.0, 1.0]], 2.0),
    ("seq-mean-token-sum-norm", [[1.0], [1.0, 1.0]], 20.0),
    ("seq-mean-turn-mean-token-mean", [[0.5], [0.5, 1 / 6]], 2.0),
]


@pytest.mark.parametrize(("mode", "weights", "denominator"), GOLDEN)
def test_aggregation(mode: str, weights: list[list[float]], denominator: float) -> None:
    """Two trajectories: one turn of 2 tokens; turns of 1 and 3 tokens."""
    assert token_weights([[2], [1, 3]], mode, norm=10.0) == (weights, denominator)


def test_every_mode_has_golden_values() -> None:
    assert {mode for mode, _, _ in GOLDEN} == set(AGGREGATIONS)


def test_unknown_aggregation() -> None:
    with pytest.raises(UserError, match="token-mean"):
        token_weights([[1]], "token-men")
