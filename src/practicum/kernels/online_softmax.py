"""Online softmax in one fixed order of keys, for every kernel that attends: decode, prefill and training.

They must round alike to the last bit. One different bit is enough: the next layer's bfloat16 turns it into many, and
after a few layers engine and trainer agree no better than if each had rounded at random. So there is one order, which
depends on nothing but a key's position in its sequence: blocks of `KEY_BLOCK` keys from the first token on, each
accumulated onto the ones before it, and the result of `SEGMENT_KEYS` keys merged with that of the segments before. The
sum of the weights is a matrix product too, since a sum across threads would depend on how a kernel lays out its rows.
Kernels that use these functions are built with `enable_fp_fusion=False`, since what a compiler fuses differs from
kernel to kernel.

m is the running maximum of the scores, l the sum of the weights exp2(score - m), acc the weighted sum of the values.
"""

from __future__ import annotations

import triton
import triton.language as tl

from practicum.kernels.paged_kv import PAGE_TOKENS

KEY_BLOCK = PAGE_TOKENS
"""Keys per matrix product."""
SEGMENT_KEYS = 512
"""Keys after which a new sum begins; the segments of a long row can be computed by several programs."""
LOG2E = 1.4426950408889634
MASKED_SCORE = tl.constexpr(-1e30)
"""The score of a key that is masked."""


@triton.jit
def dot(a, b, exact: tl.constexpr):
    if exact:
        return tl.dot(a, b, input_precision="ieee")
    else:
        return tl.dot(a, b)


@triton.jit
def weighted_sum(weight, value, acc, exact: tl.constexpr):
    """acc + weight @ value, with float32 weights. Where values are in half precision the weights are split into two
    halves, which together are as precise as float32."""
    if exact:
        return tl.dot(weight, value, acc, input_precision="ieee")
    else:
        high = weight.to(value.dtype)
        low = (weight - high.to(tl.float32)).to(value.dtype)
        return tl.dot(low, value, tl.dot(high, value, acc))


@triton.jit
def accumulate(score, value, m, l, acc, exact: tl.constexpr):
    """Add a block of keys: scores [M, B] in base 2, values [B, D]; m [M], l [M, 16] (all columns equal), acc [M, D]."""
    m_new = tl.maximum(m, tl.max(score, 1))
    weight = tl.exp2(score - m_new[:, None])
    alpha = tl.exp2(m - m_new)[:, None]
    ones = tl.full((score.shape[1], 16), 1.0, value.dtype)
    return m_new, weighted_sum(weight, ones, l * alpha, exact), weighted_sum(weight, value, acc * alpha, exact)


@triton.jit
def merge(m, l, acc, next_m, next_l, next_acc):
    """Merge two partial results: m [M], l [M], acc [M, D]. Merging onto an empty one changes no bit."""
    m_new = tl.maximum(m, next_m)
    alpha, next_alpha = tl.exp2(m - m_new), tl.exp2(next_m - m_new)
    l = l * alpha + next_l * next_alpha
    return m_new, l, acc * alpha[:, None] + next_acc * next_alpha[:, None]
