"""Weights in 8 or 4 bits, by bitsandbytes, for models on a GPU. Embeddings, norms and the LM head stay as they are.

8 bits: a row of a weight matrix is int8 with one scale. bitsandbytes would also round the activations to int8, except
columns with large values, which it looks for in the whole batch: a reply would depend on the other requests, and the
search waits for the host, so that no CUDA graph could be captured. Here a product takes the activations as they are and
the weights back in their dtype; on SmolLM2-135M the distribution is then five times nearer to that of bfloat16.
4 bits: NF4 in blocks of 64, with bitsandbytes' own products.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from practicum.errors import UserError

QUANTISED_DTYPES = ("int8", "nf4")
"""Names of dtypes whose weights are quantised when they are loaded."""
INT8_MAX = 127


def config_of_dtype(name: str | None) -> Any:
    """The bitsandbytes config of `int8` or `nf4`; None for no name."""
    return None if name is None else _config(name, f"--dtype={name}")


def config_of_keys(eight: bool, four: bool) -> Any:
    """The bitsandbytes config that model.load_in_8bit or model.load_in_4bit stands for; None for neither."""
    if eight and four:
        raise UserError("model.load_in_8bit and model.load_in_4bit exclude each other; choose one.")
    if not eight and not four:
        return None
    return _config("int8", "model.load_in_8bit") if eight else _config("nf4", "model.load_in_4bit")


def _config(name: str, key: str) -> Any:
    if not torch.cuda.is_available():
        raise UserError(
            f"{key} needs a CUDA GPU (on a CPU bitsandbytes is slower than float32); load the weights as they are."
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError("Quantised weights need bitsandbytes: pip install 'practicum[quantised]'.")
    if name == "int8":
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
    )


class Int8Linear(torch.autograd.Function):
    """x times int8 weights with a scale per row; saves the int8 weights, not those in x's dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight, scale)
        return F.linear(x, dequantised(weight, scale, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        weight, scale = ctx.saved_tensors
        return gradient @ dequantised(weight, scale, gradient.dtype), None, None, None


def dequantised(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Int8 weights [O, E] times the largest magnitude of each row [O], in `dtype`."""
    out = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    return torch.mul(weight, (scale / INT8_MAX)[:, None], out=out)


def use_weight_only_int8(model: nn.Module) -> None:
    """Let the int8 layers of a model compute with activations that are not rounded to int8."""
    import bitsandbytes

    for module in model.modules():
        if isinstance(module, bitsandbytes.nn.Linear8bitLt):
            module.init_8bit_state()
            module.forward = functools.partial(_int8_forward, module)


def _int8_forward(module: Any, x: Tensor) -> Tensor:
    result: Tensor = Int8Linear.apply(x, module.state.CB, module.state.SCB, module.bias)  # type: ignore[no-untyped-call]
    return result
