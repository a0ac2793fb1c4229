"""Keys that rows have in common, looked at together: not a bit differs from each row's own look."""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA GPU")
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """To the bit on a GPU; NumPy, which multiplies in the interpreter, rounds by how many rows there are."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 if INTERPRETED else 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(9, 3, 64), (7, 1, 32)])
@pytest.mark.parametrize("programs", [1024, 8])
@pytest.mark.parametrize("together", [True, False])
def test_together_and_alone_give_the_same_bits(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, programs: int, together: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from practicum.kernels import decode_attention
    from practicum.kernels.shared_prefix import SharedPrefixBatch

    monkeypatch.setattr(decode_attention, "PROGRAMS", programs)  # shared out among programs, or not
    rows, keys = 10, 1300
    most = decode_attention.crew_size(heads, kv_heads)
    torch.manual_seed(0)
    kv = torch.randn(2, rows, kv_heads, keys, size, device=DEVICE).to(dtype)
    query = torch.randn(rows, heads, size, device=DEVICE).to(dtype)
    homes = torch.tensor([4, 2, 7, 9, 0, 1, 3, 8, 6, 5], device=DEVICE)
    crews = {64: [0, 1], 192: [2, 3, 4], 512: [5, 6], 1088: [8, 9]}  # row 7 is on its own
    positions = torch.tensor([64, 70, 199, 1290, 300, 512, 1024, 17, 1088, 1299], device=DEVICE)
    numbers = torch.zeros(5, most, dtype=torch.int64, device=DEVICE) - 1
    leads, commons = (torch.zeros(5, dtype=torch.int64, device=DEVICE) for _ in range(2))
    of_rows, leads_of_rows = (torch.zeros(rows, dtype=torch.int64, device=DEVICE) for _ in range(2))
    for place, (common, crew) in enumerate(crews.items()):
        numbers[place, : len(crew)] = torch.tensor(crew)
        leads[place], commons[place], of_rows[crew] = homes[crew[-1]], common, common
        leads_of_rows[crew] = homes[crew[-1]]
        kv[:, homes[crew], :, :common] = kv[:, homes[crew[:1]], :, :common]
    alone = decode_attention.attend(query, kv, homes, positions)
    standing = SharedPrefixBatch(numbers, leads, commons, of_rows, leads_of_rows)
    same(decode_attention.attend(query, kv, homes, positions, standing, together), alone)
    for place, crew in enumerate(crews.values()):  # and they do look at their leader's keys
        others = [homes[number] for number in crew[:-1]]
        kv[:, others, :, : commons[place]] = 100.0
    same(decode_attention.attend(query, kv, homes, positions, standing, together), alone)
