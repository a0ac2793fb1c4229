"""Fused matrix products: not a bit differs from a matrix product and a second kernel."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.models import loader
from tests.kernels.pages import PagedRows

INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA GPU")
ROWS = [3, 130] if INTERPRETED else [1, 16, 40, 100, 130, 300, 1024]


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)
    if not INTERPRETED:
        loader.set_batch_invariant_matmul()


def random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(DTYPE)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """To the bit on a GPU; NumPy, which multiplies in the interpreter, sums in an order of its own."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4 if INTERPRETED else 0)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("size", "width"), [(64, 128)] if INTERPRETED else [(576, 1536), (896, 4864), (192, 448)])
def test_silu_and_mul(rows: int, size: int, width: int) -> None:
    from practicum.kernels.fused_layers import silu_and_mul
    from practicum.kernels.fused_matmul import matmul_silu_and_mul

    x, weight = random_tensor(rows, size), random_tensor(2 * width, size) * 0.1
    assert_same(matmul_silu_and_mul(x, weight), silu_and_mul(F.linear(x, weight)))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("size", "heads", "kv_heads", "head_size"),
    [(64, 3, 1, 32)] if INTERPRETED else [(576, 9, 3, 64), (896, 14, 2, 64), (1024, 4, 4, 128), (192, 6, 2, 32)],
)
def test_rope(rows: int, biased: bool, size: int, heads: int, kv_heads: int, head_size: int) -> None:
    from practicum.kernels.decode_attention import rope_and_store
    from practicum.kernels.fused_matmul import matmul_rope

    outputs = (heads + 2 * kv_heads) * head_size
    x, weight, bias = (
        random_tensor(rows, size),
        random_tensor(outputs, size) * 0.1,
        random_tensor(outputs) if biased else None,
    )
    angles = torch.randn(130, head_size, device=DEVICE)
    tables = angles.cos(), angles.sin()
    slots, positions = torch.randperm(rows + 1, device=DEVICE)[:rows], torch.randint(0, 130, (rows,), device=DEVICE)
    empty = torch.zeros(2, rows + 1, kv_heads, 130, head_size, dtype=DTYPE, device=DEVICE)
    result, expected = PagedRows(empty), PagedRows(empty)
    query = rope_and_store(F.linear(x, weight, bias), expected.layer, slots, positions, tables, heads, None, 1e-5)
    assert_same(matmul_rope(x, weight, bias, result.layer, slots, positions, tables, heads), query)
    assert_same(result.rows(), expected.rows())
    rows_written = result.rows()[:, slots, :, positions]
    assert (rows_written.abs().amax(-1) > 0).all()
    assert int((result.rows() != 0).any(-1).sum()) == rows * 2 * kv_heads, "nothing else is written"
