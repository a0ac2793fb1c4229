"""Golden values of specs A.10."""

from __future__ import annotations

import math

import pytest
import torch

from practicum.algorithms.kl import penalty
from practicum.errors import UserError

LOGPROBS, REFERENCE = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])  # d = 0.5, -1.0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("kl", [0.5, -1.0]),
        ("abs", [0.5, 1.0]),
        ("mse", [0.125, 0.5]),
        ("low_var_kl", [math.exp(-0.5) + 0.5 - 1, math.exp(1.0) - 1.0 - 1]),
    ],
)
def test_kinds(kind: str, expected: list[float]) -> None:
    assert penalty(LOGPROBS, REFERENCE, kind).tolist() == pytest.approx(expected, abs=1e-6)


def test_low_variance_kind_is_clamped() -> None:
    assert penalty(torch.tensor([-30.0]), torch.tensor([0.0]), "low_var_kl").item() == 10.0


def test_mse_has_the_right_gradient() -> None:
    logprobs = LOGPROBS.clone().requires_grad_()
    penalty(logprobs, REFERENCE, "mse").sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.5, -1.0])


def test_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UserError, match="low_var_kl"):
        penalty(LOGPROBS, REFERENCE, "low_var")
