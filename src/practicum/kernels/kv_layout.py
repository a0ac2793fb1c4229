"""The layout of the KV buffer, for kernels: where the keys and values of a slot's tokens are.

`engines/local/kv_cache.py` allocates the buffer. One layer of it is kv [2 (keys, values), slots, K, capacity, D].
Kernels take kv[0], kv[1] and the strides of `strides`, and find a token by the functions below.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def key_value_heads(kv: Tensor) -> int:
    return kv.shape[2]


def capacity(kv: Tensor) -> int:
    """Tokens that a slot holds."""
    return kv.shape[3]


def head_size(kv: Tensor) -> int:
    return kv.shape[4]


def strides(kv: Tensor) -> tuple[int, int]:
    """The strides of a slot and of a head, for `head_offset`."""
    return kv.stride(1), kv.stride(2)


@triton.jit
def head_offset(slot, head, slot_stride, head_stride):
    """The offset of the first token of a slot's key-value head."""
    return slot.to(tl.int64) * slot_stride + head * head_stride


@triton.jit
def token_offset(position, size: tl.constexpr):
    """The offset of a token behind the first one of its head."""
    return position * size
