"""Golden values of the losses per token, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from practicum.algorithms.losses import (
    cispo,
    gspo,
    ppo,
    sequence_log_ratios,
    truncated_importance,
    value_loss,
)


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


def test_gspo_by_hand() -> None:
    """Two sequences with ratios exp(mean log-ratio): √(1.5·1.5)=1.5 clips at 1.2; √(0.5·2)=1 stays."""
    logprobs = logs(1.5, 1.5, 0.5, 2.0).requires_grad_()
    owners = torch.tensor([7, 7, 2, 2])
    means = sequence_log_ratios(logprobs, torch.zeros(4), owners)
    result = gspo(logprobs, means, torch.tensor([1.0, 1.0, -1.0, -1.0]))
    assert result.loss.tolist() == pytest.approx([-1.2, -1.2, 1.0, 1.0], abs=1e-5)
    assert result.clipped.tolist() == [True, True, False, False]
    result.loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0, 0, 1.0, 1.0], abs=1e-5)


def test_cispo_caps_the_weight_and_keeps_the_gradient() -> None:
    logprobs = logs(3.0, 0.5).requires_grad_()
    result = cispo(logprobs, torch.zeros(2), torch.tensor([2.0, 2.0]), clip_high=0.5)
    result.loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-3.0, -1.0], abs=1e-5)  # -cap·A, -ratio·A
    assert result.clipped.tolist() == [True, False]


def test_truncated_importance() -> None:
    results = truncated_importance(logs(4.0, 0.5), logs(1.0, 1.0), cap=2.0)
    assert results.tolist() == pytest.approx([2.0, 0.5], abs=1e-6)


def test_value_loss_by_hand() -> None:
    """V=2, old 1, clip .5: held at 1.5. Target 0: ½·4 against ½·2.25. Target 3: ½·1 against ½·2.25 (clipped)."""
    values, old = torch.tensor([2.0, 2.0]), torch.tensor([1.0, 1.0])
    losses, clipped = value_loss(values, old, torch.tensor([0.0, 3.0]), 0.5)
    assert losses.tolist() == pytest.approx([2.0, 1.125])
    assert clipped.tolist() == [False, True]
    assert value_loss(values, old, torch.tensor([0.0, 3.0]), 0.0)[0].tolist() == pytest.approx([2.0, 0.5])
