"""The parameters of new requests against what the CPU runner writes."""

from __future__ import annotations

import os

import pytest
import torch

from practicum.engines.local.sampling import uniforms

INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA GPU")


def test_parameters_and_random_numbers_are_those_of_the_cpu() -> None:
    from practicum.kernels import slot_init

    seeds = [0, 1, 2**31 + 7, 2**63 - 1, 123456789123456789]
    rows = [
        slot_init.SlotParams(slot, 40 + slot, 7 * slot, slot % 3, seed, 0.1 * slot, 1.0 - 0.01 * slot)
        for slot, seed in zip((6, 0, 3, 2, 7), seeds, strict=True)
    ]
    integers = [torch.full((8,), -1, dtype=torch.int64, device=DEVICE) for _ in range(4)]
    last, position, top_k, step = integers
    temperature, top_p = (torch.full((8,), -1.0, device=DEVICE) for _ in range(2))
    noise = torch.full((8, 1500), -1.0, device=DEVICE)
    fields = (last, position, temperature, top_k, top_p, step)
    slot_init.init_slots(slot_init.pack(rows).to(DEVICE), 1300, fields, noise)
    expected = uniforms(seeds, 1300)
    for index, row in enumerate(rows):
        values = [int(field[row.slot]) for field in (last, position, top_k, step)]
        assert values == [row.last_id, row.position, row.top_k, 0]
        assert float(temperature[row.slot]) == pytest.approx(row.temperature)
        assert float(top_p[row.slot]) == pytest.approx(row.top_p)
        assert torch.equal(noise[row.slot, :1300].cpu(), expected[index])
    assert bool((noise[:, 1300:] == -1).all())
    assert bool((noise[[1, 4, 5]] == -1).all())
    assert last[[1, 4, 5]].tolist() == [-1] * 3
