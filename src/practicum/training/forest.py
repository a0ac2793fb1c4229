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
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]

SLACK = 1.25
"""How many more scores than wanted a batch of runs may hold for the sake of one shape."""
SMALL = 20_000
"""Scores that cost less than a further batch."""
BLOCK = 64
"""Tokens that a GPU looks at together."""


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on its way to a device. A GPU copies from pinned memory while the host goes on."""
    if device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


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
    """The same for a GPU: tokens in blocks of `BLOCK`, and of every block those it must look at and is looked at by."""

    ends: Tensor  # [N] int32
    looks_from: Tensor  # [blocks + 1] where a block's part of `looks` begins
    looks: Tensor
    seen_from: Tensor
    seen: Tensor

    def to(self, device: torch.device) -> Spans:
        return Spans(*(sent(value, device) for value in vars(self).values()))


@dataclass(frozen=True)
class Forest:
    """N tokens: each one's id, how many stand before it in its sequence, and where its descendants end."""

    ids: Ints  # [N]
    depths: Ints  # [N]
    ends: Ints  # [N]
    paths: list[Ints]
    """Every sequence: the numbers of its tokens."""
    runs: list[tuple[int, Ints]]
    """Every run, in order, as (its length, the tokens from the root to its last)."""

    def padded(self, size: int) -> Forest:
        """With tokens that stand alone, so that there are `size`."""
        spare = np.arange(len(self.ids), size)
        nothing = np.zeros(len(spare), dtype=np.int64)
        runs = [*self.runs, *((1, spare[place : place + 1]) for place in range(len(spare)))]
        ids, depths = np.append(self.ids, nothing), np.append(self.depths, nothing)
        return Forest(ids, depths, np.append(self.ends, spare + 1), self.paths, runs)


def common(first: Ints, second: Ints) -> int:
    """How many ids two sequences begin with in common."""
    length = min(len(first), len(second))
    differing = np.flatnonzero(first[:length] != second[:length])
    return int(differing[0]) if len(differing) else length


def lay_down(sequences: Sequence[Ints], shared: Sequence[int]) -> Forest:
    """A forest of sequences in order; `shared`: what each has in common with the one before it."""
    ids: list[Ints] = []
    depths: list[Ints] = []
    paths: list[Ints] = []
    runs: list[tuple[int, Ints]] = []
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
    return Forest(np.concatenate(ids), np.concatenate(depths), ends[:size], paths, runs)


def spans(ends: Ints) -> Spans:
    """Blocks that hold a token which one of another block's sees."""
    count = -(-len(ends) // BLOCK)
    furthest = np.zeros(count * BLOCK, dtype=np.int64)
    furthest[: len(ends)] = ends
    reach = furthest.reshape(count, BLOCK).max(1)
    number = np.arange(count)
    looking = (number[None, :] <= number[:, None]) & (reach[None, :] > number[:, None] * BLOCK)  # [queries, keys]

    def lists(table: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        starts = np.concatenate([[0], table.sum(1).cumsum()]).astype(np.int32)
        return torch.from_numpy(starts), torch.from_numpy(np.nonzero(table)[1].astype(np.int32))

    return Spans(torch.from_numpy(ends.astype(np.int32)), *lists(looking), *lists(looking.T))


def rectangles(paths: Sequence[tuple[int, Ints]]) -> Rectangles:
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
