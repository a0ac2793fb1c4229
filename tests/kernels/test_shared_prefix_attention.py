"""Joint attention to a shared prefix: not a bit differs from attention row by row."""

from __future__ import annotations

import os

import pytest
import torch

from tests.kernels.pages import PagedRows

INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA GPU")
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """To the bit on a GPU; NumPy, which multiplies in the interpreter, rounds by how many rows there are."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6 if INTERPRETED else 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(9, 3, 64), (7, 1, 32)])
@pytest.mark.parametrize("programs", [1024, 8])
def test_joint_reads_and_single_reads_give_the_same_bits(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from practicum.kernels import decode_attention
    from practicum.kernels.shared_prefix import SharedPrefixBatch

    monkeypatch.setattr(decode_attention, "TARGET_PROGRAMS", programs)  # divided among programs, or not
    rows, keys = 10, 1300
    group_rows = decode_attention.group_size(heads, kv_heads)
    torch.manual_seed(0)
    kv = torch.randn(2, rows, kv_heads, keys, size, device=DEVICE).to(dtype)
    query = torch.randn(rows, heads, size, device=DEVICE).to(dtype)
    slots = torch.tensor([4, 2, 7, 9, 0, 1, 3, 8, 6, 5], device=DEVICE)
    groups = {64: [0, 1], 192: [2, 3, 4], 512: [5, 6], 1088: [8, 9]}  # row 7 is on its own
    positions = torch.tensor([64, 70, 199, 1290, 300, 512, 1024, 17, 1088, 1299], device=DEVICE)
    member_rows = torch.zeros(5, group_rows, dtype=torch.int64, device=DEVICE) - 1
    leaders, lengths = (torch.zeros(5, dtype=torch.int64, device=DEVICE) for _ in range(2))
    row_lengths = torch.zeros(rows, dtype=torch.int64, device=DEVICE)
    for index, (length, members) in enumerate(groups.items()):
        member_rows[index, : len(members)] = torch.tensor(members)
        leaders[index], lengths[index], row_lengths[members] = slots[members[-1]], length, length
        kv[:, slots[members], :, :length] = kv[:, slots[members[:1]], :, :length]
    paged = PagedRows(kv)
    alone = decode_attention.attend(query, paged.layer, slots, positions)
    batch = SharedPrefixBatch(member_rows, leaders, lengths, row_lengths)
    assert_same(decode_attention.attend(query, paged.layer, slots, positions, batch, True), alone)
    for index, members in enumerate(groups.values()):  # and they do read their leader's keys
        others = [slots[index] for index in members[:-1]]
        kv[:, others, :, : lengths[index]] = 100.0
    paged.write(kv)
    assert_same(decode_attention.attend(query, paged.layer, slots, positions, batch, True), alone)
