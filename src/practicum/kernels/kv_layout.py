"""Where the keys and values of a slot's tokens are, for kernels.

`engines/local/cuda_kv_cache.py` allocates pages and keeps the table. Within a page, one layer's keys (and its values)
are [K, PAGE_TOKENS, D]. Kernels take the arguments of `page_arguments` and find a token by the functions below.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.paged_kv import OFFSET_UNIT, PAGE_TOKENS, LayerPages

PAGE = tl.constexpr(PAGE_TOKENS)
UNIT = tl.constexpr(OFFSET_UNIT)


def page_arguments(kv: LayerPages) -> tuple[Tensor, Tensor, Tensor, int]:
    """Keys and values of page 0, the table and its row stride, as kernels take them."""
    return kv.keys, kv.values, kv.table, kv.table.stride(0)


@triton.jit
def page_offset(table, table_stride, slot, position):
    """The offset of the page that holds a slot's token, from page 0."""
    return tl.load(table + slot * table_stride + position // PAGE) * UNIT


@triton.jit
def token_offset(position, head, size: tl.constexpr):
    """The offset of a token's key-value head within one layer of its page."""
    return (head * PAGE + position % PAGE) * size
