"""From sequences to tensors: a batch in which a common beginning is computed once.

Sequences that start alike (the chains of one prompt, or all prompts under one system message) share
those tokens: a piece of the batch is a forest, each token sees its own ancestors only, and the gradients are the
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

from practicum.training.forest import Forest, Sight, sights

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
    """N tokens of a forest and the P predictions made in them."""

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    sights: tuple[Sight, ...]  # who looks at whom
    places: Tensor  # [N] where a token's answer stands in what the sights give, end to end
    at: Tensor  # [P] the token a prediction is made at
    targets: Tensor  # [P]
    weights: Tensor  # [P]
    advantages: Tensor  # [P]
    sampling_logprobs: Tensor  # [P]
    old_logprobs: Tensor  # [P]
    corrections: Tensor  # [P]
    temperatures: Tensor  # [P]
    sample_index: Tensor  # [P] which sample a prediction belongs to

    def to(self, device: torch.device) -> Micro:
        moved = {name: value.to(device) for name, value in vars(self).items() if name != "sights"}
        return Micro(**moved, sights=tuple(sight.to(device) for sight in self.sights))


@dataclass(frozen=True)
class Cut:
    """How a batch is cut into pieces; no number that comes out depends on it.

    At most `tokens` a piece (a longer sequence goes alone), and `samples` where given.
    """

    tokens: int = 480
    samples: int | None = None


def pack(samples: Sequence[Sample], cut: Cut) -> list[list[int]]:
    """Numbers of the samples that make up each piece, in order.

    A full piece is cut where the least has to be computed again: of the places in its latter half the one
    at which neighbours have least in common, so between groups rather than within one. What a sequence ends
    with after its last prediction feeds nothing and is left out.
    """
    waiting = [(index, ids) for index, ids in enumerate(map(_inputs, samples)) if ids]
    pieces: list[list[int]] = []
    while waiting:
        forest = Forest()
        shared: list[int] = []  # tokens that each sample found laid down already
        sizes: list[int] = []
        for _, ids in waiting:
            common = len(forest.shared(ids))
            full = len(forest) + len(ids) - common > cut.tokens or (cut.samples or len(waiting)) <= len(sizes)
            if sizes and full:
                break
            shared.append(common)
            forest.add(ids)
            sizes.append(len(forest))
        end = len(sizes)
        if end < len(waiting):
            shared.append(len(forest.shared(waiting[end][1])))
            places = [place for place in range(1, end + 1) if 2 * sizes[place - 1] >= sizes[-1]]
            end = min(places, key=lambda place: (shared[place], -place))
        pieces.append([index for index, _ in waiting[:end]])
        waiting = waiting[end:]
    return pieces


def micro_batches(samples: Sequence[Sample], cut: Cut) -> Iterator[Micro]:
    """The batch in pieces."""
    return (_assemble(samples, piece) for piece in pack(samples, cut))


def _inputs(sample: Sample) -> tuple[int, ...]:
    """The tokens that feed a prediction: the last target itself is never an input."""
    predicted = np.flatnonzero(sample.mask)
    return sample.ids[: predicted[-1]] if len(predicted) else ()


def _assemble(samples: Sequence[Sample], piece: Sequence[int]) -> Micro:
    forest = Forest()
    at: list[NDArray[np.int64]] = []
    picked: list[tuple[int, NDArray[np.int64]]] = []
    for index in piece:
        nodes = np.asarray(forest.add(_inputs(samples[index])), dtype=np.int64)
        wanted = np.flatnonzero(samples[index].mask)
        at.append(nodes[wanted - 1])
        picked.append((index, wanted))
    looks, places = sights(forest.paths())
    targets = np.concatenate([np.asarray(samples[i].ids, dtype=np.int64)[w] for i, w in picked])

    def column(values: Callable[[Sample], Floats]) -> Tensor:
        return torch.from_numpy(np.concatenate([values(samples[i])[w] for i, w in picked]))

    return Micro(
        ids=torch.tensor(forest.ids),
        positions=torch.tensor(forest.depths),
        sights=looks,
        places=places,
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
