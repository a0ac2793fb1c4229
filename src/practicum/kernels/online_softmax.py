"""How a query goes through its keys, for all that look at keys and values: decoding, prompts and the learner.

They must round alike to the last bit. One different bit is enough: the next layer's bfloat16 turns it into many, and
after a few layers engine and learner agree no better than if each had rounded as it liked. So there is one order, which
depends on nothing but where a key stands in its sequence: blocks of `KEYS` from the first token on, each folded
into the ones before it, and what `SEGMENT` keys gave merged with what came before them. The sum of the weights is a
product too, as a sum across threads would depend on how a kernel lays out its rows. Kernels with these in them are
built with `enable_fp_fusion=False`, since what a compiler fuses differs from kernel to kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

KEYS = 64
"""Keys that are looked at together."""
SEGMENT = 512
"""Keys after which a new sum begins; long rows of a small batch are shared out by it."""
LOG2E = 1.4426950408889634
NOTHING = tl.constexpr(-1e30)
"""The score of a key that is not seen."""


@triton.jit
def dot(a, b, exact: tl.constexpr):
    if exact:
        return tl.dot(a, b, input_precision="ieee")
    else:
        return tl.dot(a, b)


@triton.jit
def mix(weight, value, mixed, exact: tl.constexpr):
    """Values mixed by float32 weights, on top of `mixed`. Where values are in half precision the weights come in two
    halves, which together are as good as float32."""
    if exact:
        return tl.dot(weight, value, mixed, input_precision="ieee")
    else:
        most = weight.to(value.dtype)
        rest = (weight - most.to(tl.float32)).to(value.dtype)
        return tl.dot(rest, value, tl.dot(most, value, mixed))


@triton.jit
def fold(score, value, peak, total, mixed, exact: tl.constexpr):
    """Go on by a block of keys: scores [M, B] as powers of two, values [B, D]; peak [M], total [M, 16] (its columns
    are all the same), mixed [M, D]."""
    higher = tl.maximum(peak, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    fade = tl.exp2(peak - higher)[:, None]
    ones = tl.full((score.shape[1], 16), 1.0, value.dtype)
    return higher, mix(weight, ones, total * fade, exact), mix(weight, value, mixed * fade, exact)


@triton.jit
def merge(peak, total, mixed, next_peak, next_total, next_mixed):
    """Two sums as one: peak [M], total [M], mixed [M, D]. On top of nothing it changes no bit."""
    higher = tl.maximum(peak, next_peak)
    fade, share = tl.exp2(peak - higher), tl.exp2(next_peak - higher)
    total = total * fade + next_total * share
    return higher, total, mixed * fade[:, None] + next_mixed * share[:, None]
