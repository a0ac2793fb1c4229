"""Bit masks of the tokens that may be sampled, as the sampling kernel and the learner's LM head read them.

Bit i % 32 of the word i // 32 is token i; tokens beyond the last word are not allowed. A row of -1 allows all.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def allowed_tokens(table, row, token, num_words):
    """Whether each token is in the mask `row` of a table [U, words]."""
    word = token // 32
    bits = tl.load(table + row.to(tl.int64) * num_words + word, mask=(row >= 0) & (word < num_words), other=0)
    return (row < 0) | (((bits >> (token % 32)) & 1) == 1)
