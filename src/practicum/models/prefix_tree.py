"""Sequences laid down as a forest: a common beginning is one run of tokens, however many go on from it.

Sequences come in the order of their ids, so each shares most with the one before it and a token's descendants
follow it without a gap: token j is seen by i exactly when j <= i < ends[j].

A token sees its ancestors and itself. Tokens that follow one another form a run, and a run looks back
over one path: so attention is a number of small rectangles, one a run, and what a run cannot see is
never computed. Runs of like size go together as one padded batch (`Sight`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from practicum.utils.arrays import BoolArray, IntArray

SLACK = 1.25
"""How many more scores than wanted a batch of runs may hold for the sake of one shape."""
SMALL = 20_000
"""Scores that cost less than a further batch."""
BLOCK = 64
"""Tokens that a GPU looks at together."""
ROUND = 16
"""Bytes: addresses that are multiples of it are read in large pieces."""
SHARE = 16
"""Blocks that look at one that a program goes through: what all tasks begin with is looked at by the whole batch."""


def sent(arrays: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Flat tensors on their way to a device. A GPU copies from pinned memory while the host goes on, and those of
    one type in one go, each at a round address: kernels are built anew for others."""
    if device.type == "cpu":
        return list(arrays)
    found: dict[int, Tensor] = {}
    for dtype in {array.dtype for array in arrays}:
        own = {number: array for number, array in enumerate(arrays) if array.dtype == dtype}
        step = ROUND // dtype.itemsize
        starts = np.cumsum([0, *(-(-len(array) // step) * step for array in own.values())]).tolist()
        together = torch.empty(starts[-1], dtype=dtype, pin_memory=device.type == "cuda")
        for start, array in zip(starts, own.values(), strict=False):
            together[start : start + len(array)] = array
        there = together.to(device, non_blocking=True)
        found |= {n: there[start : start + len(own[n])] for start, n in zip(starts, own, strict=False)}
    return [found[number] for number in range(len(arrays))]


@dataclass(frozen=True)
class Sight:
    """B runs of up to L tokens, and the up to S tokens of the path that each looks back over."""

    queries: Tensor  # [B, L] numbers of tokens
    keys: Tensor  # [B, S]
    visible: Tensor  # [B, 1, L, S] bool


@dataclass(frozen=True)
class Rectangles:
    """Who looks at whom, for a CPU."""

    sights: tuple[Sight, ...]
    places: Tensor  # [N] where a token's answer stands in what the sights give, end to end


@dataclass(frozen=True)
class Spans:
    """The same for a GPU, all int32. Backwards, tokens go in blocks of `BLOCK` as they lie, and each has those that it
    must look at and is looked at by. Forwards, a block of queries belongs to one run, and its keys come in the order
    of the path, as they do when a reply is decoded.
    """

    ends: Tensor  # [N]
    looks_from: Tensor  # [blocks + 1] where a block's part of `looks` begins
    looks: Tensor
    seen_from: Tensor
    seen: Tensor
    shares_from: Tensor  # [blocks + 1] where the shares of those that look at a block begin, `SHARE` in each
    shares: Tensor  # [shares] the block that each is about
    firsts: Tensor  # [queries] a block of queries' first token,
    counts: Tensor  # [queries] how many it has,
    depths: Tensor  # [queries] how many tokens stand before its first,
    paths_from: Tensor  # [queries] and where its run's path begins
    paths: Tensor

    def arrays(self) -> list[Tensor]:
        return list(vars(self).values())


@dataclass(frozen=True)
class PrefixTree:
    """N tokens: each one's id, how many stand before it in its sequence, and where its descendants end."""

    ids: IntArray  # [N]
    depths: IntArray  # [N]
    ends: IntArray  # [N]
    paths: list[IntArray]
    """Every sequence: the numbers of its tokens."""
    runs: list[tuple[int, IntArray]]
    """Every run, in order, as (its length, the tokens from the root to its last)."""
    spare: int = 0
    """Runs at the end that only fill up."""

    def padded(self, size: int) -> PrefixTree:
        """With tokens that stand alone, so that there are `size`."""
        spare = np.arange(len(self.ids), size)
        nothing = np.zeros(len(spare), dtype=np.int64)
        runs = [*self.runs, *((1, alone) for alone in spare[:, None])]
        ids, depths = np.append(self.ids, nothing), np.append(self.depths, nothing)
        return PrefixTree(ids, depths, np.append(self.ends, spare + 1), self.paths, runs, len(spare))


def common(first: IntArray, second: IntArray) -> int:
    """How many ids two sequences begin with in common."""
    length = min(len(first), len(second))
    differing = first[:length] != second[:length]
    place = int(differing.argmax()) if length else 0
    return place if length and differing[place] else length


def build_tree(sequences: Sequence[IntArray], shared: Sequence[int]) -> PrefixTree:
    """A forest of sequences in order; `shared`: what each has in common with the one before it."""
    ids: list[IntArray] = []
    depths: list[IntArray] = []
    paths: list[IntArray] = []
    runs: list[tuple[int, IntArray]] = []
    ends = np.zeros(sum(map(len, sequences)), dtype=np.int64)
    path = np.zeros(0, dtype=np.int64)
    size = 0
    for number, sequence in enumerate(sequences):
        known = shared[number] if number else 0
        ends[path[known:]] = size
        new = len(sequence) - known
        at_the_tip = known == len(path) and bool(runs)
        path = np.concatenate([path[:known], np.arange(size, size + new)])
        ids.append(sequence[known:])
        depths.append(np.arange(known, len(sequence)))
        paths.append(path)
        if new and at_the_tip and known:
            runs[-1] = (runs[-1][0] + new, path)
        elif new:
            runs.append((new, path))
        size += new
    ends[path] = size
    return PrefixTree(np.concatenate(ids), np.concatenate(depths), ends[:size], paths, runs)


def spans(forest: PrefixTree) -> Spans:
    """Blocks that hold a token which one of another block's sees, and blocks of queries with their paths."""
    ends = forest.ends
    count = -(-len(ends) // BLOCK)
    furthest = np.zeros(count * BLOCK, dtype=np.int64)
    furthest[: len(ends)] = ends
    reach = furthest.reshape(count, BLOCK).max(1)
    number = np.arange(count)
    looking = (number[None, :] <= number[:, None]) & (reach[None, :] > number[:, None] * BLOCK)  # [queries, keys]

    def lists(table: BoolArray) -> tuple[IntArray, IntArray]:
        return _starts(table.sum(1)), np.nonzero(table)[1]

    shares = -(-looking.sum(0) // SHARE)
    arrays = (ends, *lists(looking), *lists(looking.T), _starts(shares), np.repeat(number, shares), *_queries(forest))
    return Spans(*(torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)) for array in arrays))


def _starts(counts: IntArray) -> IntArray:
    return np.concatenate([[0], counts.cumsum()])


def _queries(forest: PrefixTree) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Runs in blocks of queries: their first tokens, counts, depths, where their paths begin, and the paths.

    Those that only fill up go as one: nobody hears their answers, but numbers they must be.
    """
    runs = forest.runs[: len(forest.runs) - forest.spare]
    if forest.spare:
        runs = [*runs, (forest.spare, np.arange(len(forest.ids) - forest.spare, len(forest.ids)))]
    lengths = np.array([length for length, _ in runs])
    sizes = np.array([len(path) for _, path in runs])
    blocks = -(-lengths // BLOCK)
    owner = np.repeat(np.arange(len(runs)), blocks)
    offset = BLOCK * (np.arange(len(owner)) - _starts(blocks)[owner])
    depths = (sizes - lengths)[owner] + offset
    paths = np.concatenate([path for _, path in runs])
    begins = _starts(sizes)[owner]
    return paths[begins + depths], np.minimum(lengths[owner] - offset, BLOCK), depths, begins, paths


def rectangles(paths: Sequence[tuple[int, IntArray]]) -> Rectangles:
    """Runs in batches."""
    order = sorted(range(len(paths)), key=lambda run: (paths[run][0], len(paths[run][1])))
    groups: list[list[int]] = []
    wanted = 0
    for run in order:
        length, reach = paths[run][0], len(paths[run][1])
        if groups:
            widest = max(len(paths[other][1]) for other in (*groups[-1], run))
            padded = (len(groups[-1]) + 1) * length * widest
            if padded <= SLACK * (wanted + length * reach) + SMALL:
                groups[-1].append(run)
                wanted += length * reach
                continue
        groups.append([run])
        wanted = length * reach
    places = np.zeros(sum(length for length, _ in paths), dtype=np.int64)
    made: list[Sight] = []
    offset = 0
    for group in groups:
        rows, length = len(group), max(paths[run][0] for run in group)
        reach = max(len(paths[run][1]) for run in group)
        queries, keys = np.zeros((rows, length), dtype=np.int64), np.zeros((rows, reach), dtype=np.int64)
        before = np.zeros(rows, dtype=np.int64)
        for row, run in enumerate(group):
            own, path = paths[run]
            queries[row, :own] = path[-own:]
            keys[row, : len(path)] = path
            before[row] = len(path) - own
            places[path[-own:]] = offset + row * length + np.arange(own)
        # A padded query sees something, so that it is not NaN, and nobody reads it.
        visible = np.arange(reach) <= (before[:, None] + np.arange(length))[:, :, None]
        made.append(Sight(torch.from_numpy(queries), torch.from_numpy(keys), torch.from_numpy(visible)[:, None]))
        offset += rows * length
    return Rectangles(tuple(made), torch.from_numpy(places))
