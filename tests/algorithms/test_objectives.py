"""Golden values of specs A.8."""

from __future__ import annotations

import math

import pytest
import torch

from practicum.algorithms.objectives import ppo, token_weights
from practicum.errors import UserError


def logs(*ratios: float) -> torch.Tensor:
    return torch.tensor([math.log(r) for r in ratios])


def test_ppo_clips_by_hand() -> None:
    # ratio and advantage: 1.5,+1 clips at 1.2; 0.5,+1 stays; 0.5,-1 clips at 0.8; 1.5,-1 stays; 4,-1 dual-clips at 3
    result = ppo(logs(1.5, 0.5, 0.5, 1.5, 4.0), torch.zeros(5), torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0]))
    assert result.loss.tolist() == pytest.approx([-1.2, -0.5, 0.8, 1.5, 3.0], abs=1e-5)
    assert result.clipped.tolist() == [True, False, True, False, False]
    assert result.clipped_low.tolist() == [False, False, False, False, True]


def test_asymmetric_clip() -> None:
    result = ppo(logs(1.5), torch.zeros(1), torch.ones(1), clip_low=0.2, clip_high=0.3)
    assert result.loss.item() == pytest.approx(-1.3, abs=1e-5)


def test_on_policy_gradient_is_the_advantage() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    ppo(logprobs, logprobs.detach(), torch.tensor([0.5, -2.0])).loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-0.5, 2.0])


@pytest.mark.parametrize(
    ("mode", "weights", "denominator"),
    [
        ("token-mean", [1.0, 1.0], 6.0),
        ("seq-mean-token-mean", [0.5, 0.25], 2.0),
        ("seq-mean-token-sum", [1.0, 1.0], 2.0),
        ("seq-mean-token-sum-norm", [1.0, 1.0], 20.0),
    ],
)
def test_aggregation(mode: str, weights: list[float], denominator: float) -> None:
    assert token_weights([2, 4], mode, norm=10.0) == (weights, denominator)


def test_unknown_aggregation() -> None:
    with pytest.raises(UserError, match="token-mean"):
        token_weights([1], "token-men")
