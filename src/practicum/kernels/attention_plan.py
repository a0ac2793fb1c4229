"""The layout of packed sequences that the kernels of training read: which blocks of tokens attend to which.

`training/micro_batches.py` packs sequences as a prefix tree and makes a plan of it. This file needs no Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from practicum.utils.arrays import BoolArray, IntArray

BLOCK_TOKENS = 64
"""Tokens of one block of the GPU kernels."""
QUERY_BLOCKS_PER_SPLIT = 16
"""Query blocks that one program of the backward pass sums over for a key block. The prefix that all tasks share is
attended to by the whole batch, so one program for all of them would take the longest by far."""

Segment = tuple[int, IntArray]
"""The length of a segment and the indices of the tokens from the root to its last."""


@dataclass(frozen=True)
class BlockAttentionPlan:
    """Attention of a packed batch on a GPU: block-sparse lists, all int32.

    The backward pass divides the tokens as they lie into blocks of BLOCK_TOKENS; each block has the list of blocks it
    attends to and the list of blocks that attend to it. In the forward pass a query block belongs to one segment, and
    its keys come in the order of the path, which is the order in which a reply is decoded, so the sums agree.
    """

    subtree_ends: Tensor  # [N]
    key_block_offsets: Tensor  # [blocks + 1] where the key blocks of a query block begin
    key_blocks: Tensor
    query_block_offsets: Tensor  # [blocks + 1] where the query blocks of a key block begin
    query_blocks: Tensor
    split_offsets: Tensor  # [blocks + 1] where the splits of a key block begin, QUERY_BLOCKS_PER_SPLIT in each
    split_key_blocks: Tensor  # [splits] the key block of each split
    first_queries: Tensor  # [Q] the first token of a query block
    num_queries: Tensor  # [Q] the number of its tokens
    first_depths: Tensor  # [Q] the depth of its first token
    path_offsets: Tensor  # [Q] where the path of its segment begins in `paths`
    paths: Tensor  # token indices, the paths of all segments end to end

    def arrays(self) -> list[Tensor]:
        """Return the tensors in the order of the fields."""
        return list(vars(self).values())


def block_attention_plan(
    subtree_ends: IntArray, segments: Sequence[Segment], num_padding: int = 0
) -> BlockAttentionPlan:
    """Return the block lists of N packed tokens, on the CPU; `num_padding` of them, at the end, are padding.

    Token j is visible to token i exactly when j <= i < subtree_ends[j]. `segments` are those of the tokens before the
    padding, in their order.
    """
    ends = subtree_ends
    num_blocks = -(-len(ends) // BLOCK_TOKENS)
    padded_ends = np.zeros(num_blocks * BLOCK_TOKENS, dtype=np.int64)
    padded_ends[: len(ends)] = ends
    block_ends = padded_ends.reshape(num_blocks, BLOCK_TOKENS).max(1)
    block = np.arange(num_blocks)
    attends = (block[None, :] <= block[:, None]) & (block_ends[None, :] > block[:, None] * BLOCK_TOKENS)  # [Q, K]

    def lists(table: BoolArray) -> tuple[IntArray, IntArray]:
        return _offsets(table.sum(1)), np.nonzero(table)[1]

    num_splits = -(-attends.sum(0) // QUERY_BLOCKS_PER_SPLIT)
    splits = _offsets(num_splits), np.repeat(block, num_splits)
    arrays = (ends, *lists(attends), *lists(attends.T), *splits, *_query_blocks(len(ends), segments, num_padding))
    return BlockAttentionPlan(*(torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)) for array in arrays))


def _offsets(counts: IntArray) -> IntArray:
    return np.concatenate([[0], counts.cumsum()])


def _query_blocks(
    num_tokens: int, segments: Sequence[Segment], num_padding: int
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Segments cut into query blocks: first tokens, counts, depths and path offsets of the blocks, and the paths.

    Padding goes as one segment: its outputs are not read, but must be finite.
    """
    if num_padding:
        segments = [*segments, (num_padding, np.arange(num_tokens - num_padding, num_tokens))]
    lengths = np.array([length for length, _ in segments])
    path_lengths = np.array([len(path) for _, path in segments])
    num_blocks = -(-lengths // BLOCK_TOKENS)
    owner = np.repeat(np.arange(len(segments)), num_blocks)
    offset = BLOCK_TOKENS * (np.arange(len(owner)) - _offsets(num_blocks)[owner])
    depths = (path_lengths - lengths)[owner] + offset
    paths = np.concatenate([path for _, path in segments])
    path_offsets = _offsets(path_lengths)[owner]
    counts = np.minimum(lengths[owner] - offset, BLOCK_TOKENS)
    return paths[path_offsets + depths], counts, depths, path_offsets, paths
