"""Products within a kernel, for all that look at keys and values."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot(a, b, exact: tl.constexpr):
    if exact:
        return tl.dot(a, b, input_precision="ieee")
    else:
        return tl.dot(a, b)


@triton.jit
def mix(weight, value, exact: tl.constexpr):
    """Values mixed by float32 weights, in two halves where values are in half precision.

    A weight rounded once is rounded relative to the highest score so far, and engine and learner go through the keys
    in blocks that begin elsewhere: they would round differently.
    """
    if exact:
        return tl.dot(weight, value, input_precision="ieee")
    else:
        most = weight.to(value.dtype)
        rest = (weight - most.to(tl.float32)).to(value.dtype)
        return tl.dot(most, value) + tl.dot(rest, value)
