"""The settings of rows that are let in, written to their homes by one kernel: few launches cost little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.utils.splitmix64 import GOLDEN_GAMMA, MIX_1, MIX_2

COLUMNS = 1024
"""Random numbers that a program draws."""
FIELDS = 6


@dataclass(frozen=True)
class Settings:
    """What a new row begins with."""

    home: int
    last: int
    position: int
    top_k: int
    seed: int
    temperature: float
    top_p: float


@triton.jit
def _settle(
    numbers, last, position, temperature, top_k, top_p, step, noise, longest, noise_width,
    fields: tl.constexpr, block: tl.constexpr, golden: tl.constexpr, mix_a: tl.constexpr, mix_b: tl.constexpr,
) -> None:  # fmt: skip
    row, part = tl.program_id(0), tl.program_id(1)
    source = numbers + row * fields
    home = tl.load(source)
    if part == 0:
        tl.store(last + home, tl.load(source + 1))
        tl.store(position + home, tl.load(source + 2))
        tl.store(top_k + home, tl.load(source + 3))
        tl.store(step + home, 0)
        two = tl.load(source + 5)
        tl.store(temperature + home, two.to(tl.int32).to(tl.float32, bitcast=True))
        tl.store(top_p + home, (two >> 32).to(tl.int32).to(tl.float32, bitcast=True))
    place = part * block + tl.arange(0, block)
    state = ((place + 1).to(tl.int64) * golden + tl.load(source + 4)).to(tl.uint64)
    state = ((state ^ (state >> 30)).to(tl.int64) * mix_a).to(tl.uint64)
    state = ((state ^ (state >> 27)).to(tl.int64) * mix_b).to(tl.uint64)
    state = state ^ (state >> 31)
    drawn = ((state >> 11).to(tl.float64) * (2.0**-53)).to(tl.float32)
    drawn = tl.minimum(drawn, 1.0 - 2.0**-24)
    tl.store(noise + home * noise_width + place, drawn, mask=place < longest)


def packed(rows: Sequence[Settings]) -> Tensor:
    """All settings as numbers [rows, FIELDS]; the two fractions share one."""
    fractions = np.array([(row.temperature, row.top_p) for row in rows], dtype=np.float32).view(np.int64)
    whole = [(row.home, row.last, row.position, row.top_k, row.seed & (2**63 - 1)) for row in rows]
    return torch.from_numpy(np.concatenate([np.array(whole, dtype=np.int64), fractions], axis=1))


def settle(numbers: Tensor, longest: int, fields: Sequence[Tensor], noise: Tensor) -> None:
    """`fields`: last, position, temperature, top_k, top_p and step, by home; noise gets `longest` numbers a row."""
    _settle[(len(numbers), triton.cdiv(longest, COLUMNS))](
        numbers, *fields, noise, longest, noise.stride(0), FIELDS, COLUMNS, GOLDEN_GAMMA, MIX_1, MIX_2, num_warps=4
    )
