"""Golden values, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from practicum.algorithms.kl import KINDS, Controller, full, penalty
from practicum.errors import UserError
from practicum.training.objective import Objective
from practicum.training.settings import RLSettings

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
        Objective(kl_loss_type="low_var")
    with pytest.raises(ValueError, match="low_var"):
        penalty(LOGPROBS, REFERENCE, "low_var")


def test_full_divergence_by_hand() -> None:
    """π = (½, ½), reference (¼, ¾): ½·ln 2 + ½·ln ⅔."""
    policy, reference = torch.log(torch.tensor([[0.5, 0.5]])), torch.log(torch.tensor([[0.25, 0.75]]))
    assert full(policy, reference).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-6)


def test_sampled_kinds_estimate_the_full_one() -> None:
    """k1 and k3, averaged over the policy itself, are the divergence; k2 is near it for close policies."""
    torch.manual_seed(0)
    logits = torch.randn(6)
    policy = logits.log_softmax(-1)
    reference = (logits + 0.1 * torch.randn(6)).log_softmax(-1)
    exact = full(policy, reference).item()
    for kind, tolerance in (("kl", 1e-6), ("low_var_kl", 1e-6), ("mse", 0.1 * exact)):
        expected = float((policy.exp() * penalty(policy, reference, kind)).sum())
        assert expected == pytest.approx(exact, abs=tolerance)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.endswith("+")])
def test_plus_keeps_the_value_and_takes_the_gradient_of_k2(kind: str) -> None:
    logprobs = LOGPROBS.clone().requires_grad_()
    complete = torch.tensor([0.3, 0.4])
    result = penalty(logprobs, REFERENCE, kind, complete)
    assert result.tolist() == pytest.approx(penalty(LOGPROBS, REFERENCE, kind[:-1], complete).tolist(), abs=1e-6)
    result.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.5, -1.0])


def test_adaptive_controller_golden() -> None:
    controller = Controller("adaptive", 0.001, 0.1, 10_000)
    controller.update(0.3, 64)
    assert controller.kl_coef == pytest.approx(0.00100128, abs=1e-12)
    controller = Controller("adaptive", 0.001, 0.1, 10_000)
    controller.update(0.09, 64)  # e = -0.1, within the clip
    assert controller.kl_coef == pytest.approx(0.001 * (1 - 0.1 * 64 / 10_000), abs=1e-12)


def test_fixed_controller_stays() -> None:
    controller = Controller("fixed", 0.01, 0.1, 10_000)
    controller.update(5.0, 64)
    assert controller.kl_coef == 0.01


@pytest.mark.parametrize(
    ("arguments", "message"), [(("adaptiv", 0.1, 0.1, 1), "adaptive"), (("adaptive", 0.1, 0.1, 0), "horizon")]
)
def test_controllers_that_cannot_work(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RLSettings(kl_ctrl=Controller(*arguments))  # type: ignore[arg-type]
