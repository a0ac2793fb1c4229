"""Weights in bfloat16 with float32 masters: PyTorch's own AdamW in float32, rounded."""

from __future__ import annotations

import copy

import torch
from torch import nn

from practicum.training.learner import MasterAdamW, OptimizerSettings, apply_gradient, make_optimizer

SETTINGS = OptimizerSettings(lr=1e-3, weight_decay=0.1, grad_clip=0.5)


def weights(dtype: torch.dtype) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(7, 5).bfloat16().to(dtype)), nn.Parameter(torch.randn(4).bfloat16().to(dtype))]


def test_steps_are_those_of_float32() -> None:
    exact, rounded = weights(torch.float32), weights(torch.bfloat16)
    plain, masters = make_optimizer(exact, SETTINGS), make_optimizer(rounded, SETTINGS)
    assert isinstance(masters, MasterAdamW)
    for number in range(6):
        plain.zero_grad()
        masters.zero_grad()
        torch.manual_seed(number)
        for _ in range(2):  # two pieces of a batch
            for expected, actual in zip(exact, rounded, strict=True):
                gradient = torch.randn(expected.shape).bfloat16()
                expected.grad = gradient.float() if expected.grad is None else expected.grad + gradient.float()
                actual.grad = gradient
            masters.accumulate()
        assert (
            abs(
                apply_gradient(plain, exact, SETTINGS, 1e-3, lambda: 0.0)
                - apply_gradient(masters, rounded, SETTINGS, 1e-3, lambda: 0.0)
            )
            < 1e-5
        )
        for expected, actual in zip(exact, rounded, strict=True):
            assert torch.allclose(masters.state[actual]["master"], expected, atol=1e-6)
            assert torch.equal(actual, masters.state[actual]["master"].bfloat16())


def test_small_steps_add_up() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    masters = MasterAdamW([weight], 1e-4, (0.9, 0.95), 0.0)
    for _ in range(60):  # each is far below bfloat16's precision at 1
        masters.zero_grad()
        weight.grad = torch.ones_like(weight)
        masters.accumulate()
        masters.step()
    assert torch.all(weight < 1)


def test_what_is_saved_is_all_there_is() -> None:
    first = weights(torch.bfloat16)
    masters = MasterAdamW(first, 1e-3, (0.9, 0.95), 0.0)

    def step(optimizer: MasterAdamW, held: list[nn.Parameter], seed: int) -> None:
        optimizer.zero_grad()
        torch.manual_seed(seed)
        for weight in held:
            weight.grad = torch.randn_like(weight)
        optimizer.accumulate()
        optimizer.step()

    step(masters, first, 0)
    second = [nn.Parameter(weight.detach().clone()) for weight in first]
    resumed = MasterAdamW(second, 1e-3, (0.9, 0.95), 0.0)
    for expected, actual in zip(first, second, strict=True):
        resumed.state[actual].update(copy.deepcopy(masters.state[expected]))
    step(masters, first, 1)
    step(resumed, second, 1)
    for expected, actual in zip(first, second, strict=True):
        assert torch.equal(expected, actual)
        assert torch.equal(masters.state[expected]["master"], resumed.state[actual]["master"])
