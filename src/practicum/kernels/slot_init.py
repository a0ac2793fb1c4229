"""Sampling parameters of newly admitted requests, written to their slots by one kernel: few launches cost little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.utils.splitmix64 import GOLDEN_GAMMA, MIX_1, MIX_2

NUMBERS_PER_PROGRAM = 1024
"""Random numbers that a program draws."""
NUM_FIELDS = 6


class SlotParams(NamedTuple):
    """What a slot is initialised with: the first input and the sampling parameters."""

    slot: int
    last_id: int
    position: int
    top_k: int
    seed: int
    temperature: float
    top_p: float


@triton.jit
def _init_slots(
    packed_params, last_ids, positions, temperatures, top_k, top_p, steps, noise, longest, noise_width,
    fields: tl.constexpr, block: tl.constexpr, gamma: tl.constexpr, mix_1: tl.constexpr, mix_2: tl.constexpr,
) -> None:  # fmt: skip
    row, part = tl.program_id(0), tl.program_id(1)
    source = packed_params + row * fields
    slot = tl.load(source)
    if part == 0:
        tl.store(last_ids + slot, tl.load(source + 1))
        tl.store(positions + slot, tl.load(source + 2))
        tl.store(top_k + slot, tl.load(source + 3))
        tl.store(steps + slot, 0)
        pair = tl.load(source + 5)
        tl.store(temperatures + slot, pair.to(tl.int32).to(tl.float32, bitcast=True))
        tl.store(top_p + slot, (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True))
    column = part * block + tl.arange(0, block)
    state = ((column + 1).to(tl.int64) * gamma + tl.load(source + 4)).to(tl.uint64)
    state = ((state ^ (state >> 30)).to(tl.int64) * mix_1).to(tl.uint64)
    state = ((state ^ (state >> 27)).to(tl.int64) * mix_2).to(tl.uint64)
    state = state ^ (state >> 31)
    uniform = ((state >> 11).to(tl.float64) * (2.0**-53)).to(tl.float32)
    uniform = tl.minimum(uniform, 1.0 - 2.0**-24)
    tl.store(noise + slot * noise_width + column, uniform, mask=column < longest)


def pack(rows: Sequence[SlotParams]) -> Tensor:
    """All parameters as integers [rows, NUM_FIELDS]; temperature and top-p share one."""
    fractions = np.array([(row.temperature, row.top_p) for row in rows], dtype=np.float32).view(np.int64)
    integers = [(row.slot, row.last_id, row.position, row.top_k, row.seed & (2**63 - 1)) for row in rows]
    return torch.from_numpy(np.concatenate([np.array(integers, dtype=np.int64), fractions], axis=1))


def init_slots(params: Tensor, longest: int, fields: Sequence[Tensor], noise: Tensor) -> None:
    """Write packed parameters to their slots, and `longest` uniform random numbers per row to `noise` [slots, ..].

    `fields`: last id, position, temperature, top-k, top-p and number of sampled tokens, by slot.
    """
    _init_slots[(len(params), triton.cdiv(longest, NUMBERS_PER_PROGRAM))](
        params, *fields, noise, longest, noise.stride(0), NUM_FIELDS, NUMBERS_PER_PROGRAM, GOLDEN_GAMMA, MIX_1, MIX_2,
        num_warps=4,
    )  # fmt: skip
