"""Sequences laid down as a forest: a common beginning is one run of tokens, however many go on from it.

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


@dataclass(frozen=True)
class Sight:
    """B runs of up to L tokens, and the up to S tokens of the path that each looks back over."""

    queries: Tensor  # [B, L] numbers of tokens
    keys: Tensor  # [B, S]
    visible: Tensor  # [B, 1, L, S] bool

    def to(self, device: torch.device) -> Sight:
        return Sight(self.queries.to(device), self.keys.to(device), self.visible.to(device))


class Forest:
    """Tokens under construction: each with the number of the token before it, -1 where it is the first."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def shared(self, ids: Sequence[int]) -> list[int]:
        """Tokens that already hold the beginning of `ids`."""
        nodes: list[int] = []
        at = -1
        for token in ids:
            found = self.children.get((at, token))
            if found is None:
                break
            nodes.append(found)
            at = found
        return nodes

    def add(self, ids: Sequence[int]) -> list[int]:
        """Lay down what is new of a sequence; the numbers of all its tokens."""
        nodes = self.shared(ids)
        at = nodes[-1] if nodes else -1
        for token in ids[len(nodes) :]:
            node = len(self.ids)
            self.children[(at, token)] = node
            self.ids.append(token)
            self.parents.append(at)
            self.depths.append(len(nodes))
            nodes.append(node)
            at = node
        return nodes

    def paths(self) -> list[tuple[int, Ints]]:
        """Every run, in order, as (its length, the tokens from the root to its last)."""
        parents = np.asarray(self.parents, dtype=np.int64)
        starts = np.flatnonzero(parents != np.arange(-1, len(parents) - 1))
        if len(starts) == 0 or starts[0] != 0:
            starts = np.concatenate([np.zeros(min(1, len(parents)), dtype=np.int64), starts])
        stops = np.append(starts[1:], len(parents))
        found: list[tuple[int, Ints]] = []
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            own = np.arange(start, stop, dtype=np.int64)
            parent = self.parents[start]
            if parent >= 0:
                owner = int(np.searchsorted(starts, parent, side="right")) - 1
                before = found[owner][1]
                own = np.concatenate([before[: len(before) - (int(stops[owner]) - 1 - parent)], own])
            found.append((stop - start, own))
        return found


def sights(paths: Sequence[tuple[int, Ints]]) -> tuple[tuple[Sight, ...], Tensor]:
    """Runs in batches, and for each token [N] its place in the batches' outputs laid end to end."""
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
    return tuple(made), torch.from_numpy(places)
