"""Weights in 8 bits, and where quantised weights are accepted. What needs bitsandbytes and a GPU is not tested here."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.errors import UserError
from practicum.models import loader, quantisation
from practicum.models.loader import Device


def int8_weights(weight: Tensor) -> tuple[Tensor, Tensor]:
    """As bitsandbytes has them: a row's largest magnitude is its scale, and 127 of int8."""
    scale = weight.abs().amax(1)
    return (weight * quantisation.INT8_MAX / scale[:, None]).round().to(torch.int8), scale


def test_a_weight_is_off_by_half_a_step_of_its_row_at_most() -> None:
    torch.manual_seed(0)
    weight = torch.randn(24, 40) * torch.logspace(-2, 2, 24)[:, None]
    result = quantisation.dequantised(*int8_weights(weight), torch.float32)
    step = weight.abs().amax(1, keepdim=True) / quantisation.INT8_MAX
    assert float(((result - weight).abs() / step).max()) <= 0.5 + 1e-4
    assert quantisation.dequantised(*int8_weights(weight), torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("biased", [False, True])
def test_product_and_gradient_are_those_of_the_dequantised_weights(biased: bool) -> None:
    torch.manual_seed(0)
    integers, scale = int8_weights(torch.randn(24, 40))
    bias = torch.randn(24) if biased else None
    x = torch.randn(3, 5, 40, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    result = quantisation.Int8Linear.apply(x, integers, scale, bias)
    weight = integers.double() * scale.double()[:, None] / 127
    expected = F.linear(exact, weight, None if bias is None else bias.double())
    gradient = torch.randn_like(result)
    result.backward(gradient)
    expected.backward(gradient.double())
    assert x.grad is not None
    assert exact.grad is not None
    assert torch.allclose(result.double(), expected, atol=1e-4)
    assert torch.allclose(x.grad.double(), exact.grad, atol=1e-4)


def test_only_models_that_are_not_trained_have_quantised_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in quantisation.QUANTISED_DTYPES:
        device = loader.resolve_device("auto", name, may_quantise=True)
        assert device == Device("cuda", torch.bfloat16, name)
        assert device.dtype_name == name  # what episodes and results record
        with pytest.raises(UserError, match=f"--dtype={name} is not a dtype of weights"):
            loader.resolve_device("auto", name)
        with pytest.raises(UserError, match=f"--dtype={name} needs a CUDA GPU"):
            loader.resolve_device("cpu", name, may_quantise=True)
