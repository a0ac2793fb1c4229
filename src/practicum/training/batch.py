"""From sequences to tensors: packed rows in which a common beginning is computed once.

Sequences that start alike (the chains of one prompt, or all prompts under one system message) share
those tokens: a row holds a forest, each token sees its own ancestors only, and the gradients are the
ones of the sequences laid out singly. A prediction is (the token it is made at, the token wanted);
index j of a sequence's log-probs belongs to token j+1, made at token j.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Sample:
    """One sequence for the learner [T]. Position 0 cannot be predicted, so its mask is False.

    `old_logprobs` is what ratios are taken against: the engine's own unless the learner computed
    them again, and then `corrections` weighs each token's policy gradient for the difference.
    """

    ids: tuple[int, ...]
    mask: NDArray[np.bool_]
    weights: Floats
    advantages: Floats
    sampling_logprobs: Floats
    temperature: float = 1.0
    old_logprobs: Floats | None = None
    corrections: Floats | None = None

    def __post_init__(self) -> None:
        arrays = (self.mask, self.weights, self.advantages, self.sampling_logprobs, self.old_logprobs, self.corrections)
        if any(array is not None and len(array) != len(self.ids) for array in arrays):
            raise ValueError("a sample's arrays must have one entry a token")
        if len(self.ids) and self.mask[0]:
            raise ValueError("the first token of a sequence cannot be predicted")


@dataclass(frozen=True)
class Micro:
    """Rows [R, T] of packed tokens and the P predictions made in them."""

    ids: Tensor  # [R, T]
    positions: Tensor  # [R, T]
    visible: Tensor  # [R, 1, T, T] bool
    at: Tensor  # [P] flat index into R·T of the token a prediction is made at
    targets: Tensor  # [P]
    weights: Tensor  # [P]
    advantages: Tensor  # [P]
    sampling_logprobs: Tensor  # [P]
    old_logprobs: Tensor  # [P]
    corrections: Tensor  # [P]
    temperatures: Tensor  # [P]
    sample_index: Tensor  # [P] which sample a prediction belongs to

    def to(self, device: torch.device) -> Micro:
        return Micro(**{name: value.to(device) for name, value in vars(self).items()})


class _Row:
    """A forest of tokens under construction."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.children: dict[tuple[int, int], int] = {}
        self.members: list[tuple[int, list[int]]] = []

    def shared(self, ids: Sequence[int]) -> list[int]:
        """Nodes that already hold the beginning of `ids`."""
        nodes: list[int] = []
        at = -1
        for token in ids:
            found = self.children.get((at, token))
            if found is None:
                break
            nodes.append(found)
            at = found
        return nodes

    def add(self, index: int, ids: Sequence[int]) -> None:
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
        self.members.append((index, nodes))

    def fill_visible(self, visible: NDArray[np.bool_]) -> None:
        """Mark the ancestors of every token in visible [T, T], run by run."""
        start, count = 0, len(self.ids)
        while start < count:
            stop = start + 1
            while stop < count and self.parents[stop] == stop - 1:
                stop += 1
            if self.parents[start] >= 0:
                visible[start:stop] = visible[self.parents[start]]
            visible[start:stop, start:stop] = np.tri(stop - start, dtype=np.bool_)
            start = stop


def pack(samples: Sequence[Sample], row_tokens: int = 512, row_samples: int | None = None) -> list[_Row]:
    """Samples to rows, in order; a row closes when the next sample would overfill it.

    What a sequence ends with after its last prediction feeds nothing and is left out.
    """
    rows: list[_Row] = []
    for index, sample in enumerate(samples):
        predicted = np.flatnonzero(sample.mask)
        if len(predicted) == 0:
            continue
        ids = sample.ids[: predicted[-1]]  # the last target itself is never an input
        row = rows[-1] if rows else None
        if (
            row is None
            or (row_samples is not None and len(row.members) >= row_samples)
            or len(row.ids) + len(ids) - len(row.shared(ids)) > row_tokens
        ):
            row = _Row()
            rows.append(row)
        row.add(index, ids)
    return rows


@dataclass(frozen=True)
class Cut:
    """How a batch is cut into pieces; no number that comes out depends on it.

    At most `tokens` a piece, padding included (a longer row goes alone), and `samples` where given.
    """

    tokens: int = 4096
    row_tokens: int = 512
    samples: int | None = None


def micro_batches(samples: Sequence[Sample], cut: Cut) -> Iterator[Micro]:
    """The batch in pieces."""
    rows = pack(samples, min(cut.row_tokens, cut.tokens), cut.samples)
    rows.sort(key=lambda row: -len(row.ids))
    while rows:
        width = len(rows[0].ids)
        count, members = 1, len(rows[0].members)
        while count < len(rows) and (count + 1) * width <= cut.tokens:
            members += len(rows[count].members)
            if cut.samples is not None and members > cut.samples:
                break
            count += 1
        yield _assemble(rows[:count], samples, width)
        rows = rows[count:]


def _assemble(rows: Sequence[_Row], samples: Sequence[Sample], width: int) -> Micro:
    ids = np.zeros((len(rows), width), dtype=np.int64)
    positions = np.zeros((len(rows), width), dtype=np.int64)
    visible = np.zeros((len(rows), width, width), dtype=np.bool_)
    at: list[NDArray[np.int64]] = []
    picked: list[tuple[int, NDArray[np.int64]]] = []
    for number, row in enumerate(rows):
        count = len(row.ids)
        ids[number, :count] = row.ids
        positions[number, :count] = row.depths
        row.fill_visible(visible[number])
        padding = np.arange(count, width)
        visible[number, padding, padding] = True  # an all-masked row would be NaN
        for index, nodes in row.members:
            wanted = np.flatnonzero(samples[index].mask)
            at.append(np.asarray(nodes, dtype=np.int64)[wanted - 1] + number * width)
            picked.append((index, wanted))
    targets = np.concatenate([np.asarray(samples[i].ids, dtype=np.int64)[w] for i, w in picked])

    def column(values: Callable[[Sample], Floats]) -> Tensor:
        return torch.from_numpy(np.concatenate([values(samples[i])[w] for i, w in picked]))

    return Micro(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        visible=torch.from_numpy(visible)[:, None],
        at=torch.from_numpy(np.concatenate(at)),
        targets=torch.from_numpy(targets),
        weights=column(lambda sample: sample.weights),
        advantages=column(lambda sample: sample.advantages),
        sampling_logprobs=column(lambda sample: sample.sampling_logprobs),
        old_logprobs=column(lambda s: s.sampling_logprobs if s.old_logprobs is None else s.old_logprobs),
        corrections=column(lambda s: np.ones_like(s.weights) if s.corrections is None else s.corrections),
        temperatures=column(lambda sample: np.full(len(sample.ids), sample.temperature, dtype=np.float32)),
        sample_index=torch.from_numpy(np.concatenate([np.full(len(w), i, dtype=np.int64) for i, w in picked])),
    )
