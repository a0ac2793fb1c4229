"""The settings of new rows against what the CPU engine writes."""

from __future__ import annotations

import os

import pytest
import torch

from practicum.engines.local.sampling import uniforms

INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA GPU")


def test_settings_and_random_numbers_are_those_of_the_cpu() -> None:
    from practicum.kernels import slot_init

    seeds = [0, 1, 2**31 + 7, 2**63 - 1, 123456789123456789]
    rows = [
        slot_init.Settings(home, 40 + home, 7 * home, home % 3, seed, 0.1 * home, 1.0 - 0.01 * home)
        for home, seed in zip((6, 0, 3, 2, 7), seeds, strict=True)
    ]
    whole = [torch.full((8,), -1, dtype=torch.int64, device=DEVICE) for _ in range(4)]
    last, position, top_k, step = whole
    temperature, top_p = (torch.full((8,), -1.0, device=DEVICE) for _ in range(2))
    noise = torch.full((8, 1500), -1.0, device=DEVICE)
    fields = (last, position, temperature, top_k, top_p, step)
    slot_init.settle(slot_init.packed(rows).to(DEVICE), 1300, fields, noise)
    expected = uniforms(seeds, 1300)
    for number, row in enumerate(rows):
        found = [int(field[row.home]) for field in (last, position, top_k, step)]
        assert found == [row.last, row.position, row.top_k, 0]
        assert float(temperature[row.home]) == pytest.approx(row.temperature)
        assert float(top_p[row.home]) == pytest.approx(row.top_p)
        assert torch.equal(noise[row.home, :1300].cpu(), expected[number])
    assert bool((noise[:, 1300:] == -1).all())
    assert bool((noise[[1, 4, 5]] == -1).all())
    assert last[[1, 4, 5]].tolist() == [-1] * 3
