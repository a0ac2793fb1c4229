"""Keys and values of one layer in pages, as the kernels take them. Needs no Triton."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

PAGE_TOKENS = 64
"""Tokens of a page: the block of keys that attention adds up at a time, so that a block is never in two pages."""
OFFSET_UNIT = 16
"""Elements in which the page table counts: any allocation begins at a multiple, and kernels read 16 bytes at a time."""


@dataclass(frozen=True)
class LayerPages:
    """One layer's keys and values: its part of page 0, and where every other page is, counted from there.

    Pages may be in several allocations; only differences of addresses are in the table. Page 0 belongs to no request:
    entries that no page was reserved for are 0, so that every entry is a page that may be written to.
    """

    keys: Tensor  # [K, PAGE_TOKENS, D] of page 0
    values: Tensor  # [K, PAGE_TOKENS, D] of page 0
    table: Tensor  # [slots, pages of a slot] int64, in units of OFFSET_UNIT elements
    capacity: int
    """Tokens that a slot can have at present; kernels divide the work among programs by it."""

    @property
    def kv_heads(self) -> int:
        return self.keys.shape[0]

    @property
    def head_size(self) -> int:
        return self.keys.shape[2]
