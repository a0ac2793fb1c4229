"""Packing of sequences as a prefix tree: a prefix that several sequences share is stored and computed once.

Sequences come in the order of their ids, so each shares most with the one before it, and a token's descendants
follow it without a gap: token j is visible to token i exactly when j <= i < subtree_ends[j].

A token attends to its ancestors and itself. Consecutive tokens of one path form a segment, and a segment attends to
one path. On a CPU, attention is therefore a number of small dense rectangles, one per segment, and what a segment
cannot see is never computed; segments of similar size go together as one padded batch (`PaddedAttentionPlan`). On a GPU
it is block-sparse (`BlockAttentionPlan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from practicum.utils.arrays import BoolArray, IntArray

MAX_PADDING_RATIO = 1.25
"""Scores that a padded batch of segments may compute, over those that are needed."""
FREE_PADDING_SCORES = 20_000
"""Scores of padding that cost less than a further batch."""
BLOCK_TOKENS = 64
"""Tokens of one block of the GPU kernels."""
ALIGNMENT_BYTES = 16
"""Addresses that are multiples of it are read in wide loads; others need kernels compiled apart."""
QUERY_BLOCKS_PER_SPLIT = 16
"""Query blocks that one program of the backward pass sums over for a key block. The prefix that all tasks share is
attended to by the whole batch, so one program for all of them would take the longest by far."""

Segment = tuple[int, IntArray]
"""The length of a segment and the indices of the tokens from the root to its last."""


@dataclass(frozen=True)
class AttentionBatch:
    """B segments of up to L query tokens, each with the up to S key tokens of its path."""

    queries: Tensor  # [B, L] token indices
    keys: Tensor  # [B, S] token indices
    visible: Tensor  # [B, 1, L, S] bool


@dataclass(frozen=True)
class PaddedAttentionPlan:
    """Attention of a packed batch on a CPU: padded batches of segments."""

    batches: tuple[AttentionBatch, ...]
    output_index: Tensor  # [N] the row of a token in the flattened outputs of all batches


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


@dataclass(frozen=True)
class PrefixTree:
    """N tokens: the id of each, its depth in its sequence, and where its descendants end."""

    ids: IntArray  # [N]
    depths: IntArray  # [N]
    subtree_ends: IntArray  # [N]
    paths: list[IntArray]  # per sequence, the indices of its tokens
    segments: list[Segment]  # in the order of their tokens
    num_padding: int = 0  # segments at the end that are padding, one token each

    def padded(self, size: int) -> PrefixTree:
        """Return the tree with `size` tokens: each added one is a root of its own."""
        padding = np.arange(len(self.ids), size)
        zeros = np.zeros(len(padding), dtype=np.int64)
        segments = [*self.segments, *((1, path) for path in padding[:, None])]
        ids, depths = np.append(self.ids, zeros), np.append(self.depths, zeros)
        return PrefixTree(ids, depths, np.append(self.subtree_ends, padding + 1), self.paths, segments, len(padding))


def shared_prefix_length(first: IntArray, second: IntArray) -> int:
    """Return how many ids two sequences have in common at their beginning."""
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    index = int(differs.argmax()) if length else 0
    return index if length and differs[index] else length


def build_tree(sequences: Sequence[IntArray], shared: Sequence[int]) -> PrefixTree:
    """Build the tree of sequences in the order of their ids.

    `shared` holds the length of the prefix that each has in common with the previous one.
    """
    ids: list[IntArray] = []
    depths: list[IntArray] = []
    paths: list[IntArray] = []
    segments: list[Segment] = []
    subtree_ends = np.zeros(sum(map(len, sequences)), dtype=np.int64)
    path = np.zeros(0, dtype=np.int64)
    size = 0
    for index, sequence in enumerate(sequences):
        prefix = shared[index] if index else 0
        subtree_ends[path[prefix:]] = size
        num_new = len(sequence) - prefix
        extends_last = prefix == len(path) and bool(segments)
        path = np.concatenate([path[:prefix], np.arange(size, size + num_new)])
        ids.append(sequence[prefix:])
        depths.append(np.arange(prefix, len(sequence)))
        paths.append(path)
        if num_new and extends_last and prefix:
            segments[-1] = (segments[-1][0] + num_new, path)
        elif num_new:
            segments.append((num_new, path))
        size += num_new
    subtree_ends[path] = size
    return PrefixTree(np.concatenate(ids), np.concatenate(depths), subtree_ends[:size], paths, segments)


def block_attention_plan(tree: PrefixTree) -> BlockAttentionPlan:
    """Return the block lists of a tree, on the CPU."""
    ends = tree.subtree_ends
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
    arrays = (ends, *lists(attends), *lists(attends.T), *splits, *_query_blocks(tree))
    return BlockAttentionPlan(*(torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)) for array in arrays))


def _offsets(counts: IntArray) -> IntArray:
    return np.concatenate([[0], counts.cumsum()])


def _query_blocks(tree: PrefixTree) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Segments cut into query blocks: first tokens, counts, depths and path offsets of the blocks, and the paths.

    Padding goes as one segment: its outputs are not read, but must be finite.
    """
    segments = tree.segments[: len(tree.segments) - tree.num_padding]
    if tree.num_padding:
        segments = [*segments, (tree.num_padding, np.arange(len(tree.ids) - tree.num_padding, len(tree.ids)))]
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


def padded_attention_plan(segments: Sequence[Segment]) -> PaddedAttentionPlan:
    """Return the padded batches of the segments, on the CPU."""
    output_index = np.zeros(sum(length for length, _ in segments), dtype=np.int64)
    batches: list[AttentionBatch] = []
    offset = 0
    for group in _groups_of_similar_size(segments):
        rows, length = len(group), max(segments[index][0] for index in group)
        path_length = max(len(segments[index][1]) for index in group)
        queries, keys = np.zeros((rows, length), dtype=np.int64), np.zeros((rows, path_length), dtype=np.int64)
        depths = np.zeros(rows, dtype=np.int64)
        for row, index in enumerate(group):
            own, path = segments[index]
            queries[row, :own] = path[-own:]
            keys[row, : len(path)] = path
            depths[row] = len(path) - own
            output_index[path[-own:]] = offset + row * length + np.arange(own)
        # A padding query attends to something, so that its output is not NaN; the output is not read.
        visible = np.arange(path_length) <= (depths[:, None] + np.arange(length))[:, :, None]
        tensors = (torch.from_numpy(queries), torch.from_numpy(keys), torch.from_numpy(visible)[:, None])
        batches.append(AttentionBatch(*tensors))
        offset += rows * length
    return PaddedAttentionPlan(tuple(batches), torch.from_numpy(output_index))


def _groups_of_similar_size(segments: Sequence[Segment]) -> list[list[int]]:
    """Segment indices in groups whose padding stays within MAX_PADDING_RATIO and FREE_PADDING_SCORES."""
    order = sorted(range(len(segments)), key=lambda index: (segments[index][0], len(segments[index][1])))
    groups: list[list[int]] = []
    needed = 0
    for index in order:
        length, path_length = segments[index][0], len(segments[index][1])
        if groups:
            widest = max(len(segments[other][1]) for other in (*groups[-1], index))
            padded = (len(groups[-1]) + 1) * length * widest
            if padded <= MAX_PADDING_RATIO * (needed + length * path_length) + FREE_PADDING_SCORES:
                groups[-1].append(index)
                needed += length * path_length
                continue
        groups.append([index])
        needed = length * path_length
    return groups


def copy_to_device(arrays: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return flat tensors on a device, in the same order.

    A GPU copies from pinned memory while the host goes on. Tensors of one dtype are copied together, each at an aligned
    address: Triton compiles separate kernels for addresses that are not.
    """
    if device.type == "cpu":
        return list(arrays)
    copies: dict[int, Tensor] = {}
    for dtype in {array.dtype for array in arrays}:
        own = {index: array for index, array in enumerate(arrays) if array.dtype == dtype}
        step = ALIGNMENT_BYTES // dtype.itemsize
        starts = np.cumsum([0, *(-(-len(array) // step) * step for array in own.values())]).tolist()
        buffer = torch.empty(starts[-1], dtype=dtype, pin_memory=device.type == "cuda")
        for start, array in zip(starts, own.values(), strict=False):
            buffer[start : start + len(array)] = array
        on_device = buffer.to(device, non_blocking=True)
        copies |= {index: on_device[start : start + len(own[index])] for start, index in zip(starts, own, strict=False)}
    return [copies[index] for index in range(len(arrays))]
