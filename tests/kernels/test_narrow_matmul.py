"""Products in narrow tiles: they are right, and the engine uses them only where their bits are cuBLAS's."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F

from practicum.models import loader

INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA GPU")


@pytest.mark.parametrize("rows", [3, 40] if INTERPRETED else [8, 16, 32, 64, 96, 128])
@pytest.mark.parametrize(("size", "width"), [(256, 64)] if INTERPRETED else [(1536, 576), (4864, 896), (8960, 1536)])
def test_products_are_right(rows: int, size: int, width: int) -> None:
    from practicum.kernels.narrow_matmul import candidate_tiles, narrow_matmul

    torch.manual_seed(0)
    x, weight = (torch.randn(count, size, device=DEVICE).to(DTYPE) for count in (rows, width))
    exact = F.linear(x.double(), weight.double())
    tiles = candidate_tiles(rows, size, width)
    assert tiles
    for tile in tiles:
        error = (narrow_matmul(x, weight, tile).double() - exact).norm() / exact.norm()
        assert float(error) < (1e-5 if INTERPRETED else 1e-2)


def test_tiles_that_do_not_divide_a_product_are_not_tried() -> None:
    from practicum.kernels.narrow_matmul import candidate_tiles

    assert candidate_tiles(64, 8960, 1536)
    assert candidate_tiles(64, 100, 1536) == ()
    assert candidate_tiles(64, 1536, 17920) == ()
    assert candidate_tiles(1024, 8960, 1536) == ()


@pytest.mark.skipif(INTERPRETED, reason="needs a CUDA GPU")
def test_a_choice_gives_the_bits_of_the_learner() -> None:
    from practicum.kernels.narrow_matmul import ProductChoices
    from practicum.models.decoder import FusedLinear

    loader.set_batch_invariant_matmul()
    torch.manual_seed(0)
    layers = [FusedLinear([torch.nn.Linear(8960, 1536, bias=False, device="cuda", dtype=DTYPE)]) for _ in range(4)]
    choices = ProductChoices()
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        x = torch.randn(4096, 8960, device="cuda").to(DTYPE)
        many_rows = F.linear(x, layers[1].linears[0].weight)
        for rows in (8, 32, 64, 128):
            assert torch.equal(choices.linear(layers[1], x[:rows].contiguous(), layers), many_rows[:rows])
        torch.cuda.current_stream().synchronize()
    assert len(choices.tiles) == 4
