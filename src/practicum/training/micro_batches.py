"""From sequences to tensors: a batch in which a common beginning is computed once.

Sequences that start alike (the chains of one prompt, or all prompts under one system message) share
those tokens: a piece of the batch is a forest, each token sees its own ancestors only, and the gradients are the
ones of the sequences laid out singly. A prediction is (the token it is made at, the token wanted);
index j of a sequence's log-probs belongs to token j+1, made at token j.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from practicum.models.prefix_tree import Rectangles, Spans, build_tree, common, rectangles, sent, spans
from practicum.utils.arrays import BoolArray, Float32Array, IntArray


@dataclass(frozen=True)
class Sample:
    """One sequence for the learner [T]. Position 0 cannot be predicted, so its mask is False.

    `old_logprobs` is what ratios are taken against: the engine's own unless the learner computed
    them again, and then `corrections` weighs each token's policy gradient for the difference.
    """

    ids: tuple[int, ...]
    mask: BoolArray
    weights: Float32Array
    advantages: Float32Array
    sampling_logprobs: Float32Array
    temperature: float = 1.0
    old_logprobs: Float32Array | None = None
    corrections: Float32Array | None = None

    def __post_init__(self) -> None:
        arrays = (self.mask, self.weights, self.advantages, self.sampling_logprobs, self.old_logprobs, self.corrections)
        count = len(self.ids)
        for array in arrays:
            if array is not None and len(array) != count:
                raise ValueError("a sample's arrays must have one entry a token")
        if count and self.mask[0]:
            raise ValueError("the first token of a sequence cannot be predicted")


@dataclass(frozen=True)
class MicroBatch:
    """N tokens of a forest and the P predictions made in them."""

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    look: Rectangles | Spans  # who looks at whom
    at: Tensor  # [P] the token a prediction is made at
    targets: Tensor  # [P]
    weights: Tensor  # [P]
    advantages: Tensor  # [P]
    sampling_logprobs: Tensor  # [P]
    old_logprobs: Tensor  # [P]
    corrections: Tensor  # [P]
    temperatures: Tensor  # [P]
    sample_index: Tensor  # [P] which sample a prediction belongs to


@dataclass(frozen=True)
class MicroBatchLimits:
    """How a batch is cut into pieces; no number that comes out depends on it.

    At most `tokens` a piece (a longer sequence goes alone), and `samples` where given.
    """

    tokens: int = 480
    samples: int | None = None


@dataclass(frozen=True)
class Ordered:
    """A batch in the order of its ids: the numbers of the samples, which of their tokens are predicted, what of each is
    fed, what is wanted there, and what it shares with the one before. What a sequence ends with after its last
    prediction feeds nothing and is left out."""

    numbers: list[int]
    predicted: list[IntArray]
    inputs: list[IntArray]
    targets: list[IntArray]
    shared: list[int]


def ordered(samples: Sequence[Sample]) -> Ordered:
    predicted = [np.flatnonzero(sample.mask) for sample in samples]
    ids = [np.fromiter(sample.ids, dtype=np.int64) for sample in samples]
    fed = {number: ids[number][: where[-1]] for number, where in enumerate(predicted) if len(where)}
    written = {number: one.astype(">u4").tobytes() for number, one in fed.items()}  # ordered as the ids are, but sooner
    numbers = sorted(written, key=written.__getitem__)
    predicted = [predicted[number] for number in numbers]
    inputs = [fed[number] for number in numbers]
    targets = [ids[number][where] for number, where in zip(numbers, predicted, strict=True)]
    shared = [common(inputs[number - 1], one) if number else 0 for number, one in enumerate(inputs)]
    return Ordered(numbers, predicted, inputs, targets, shared)


def pack(batch: Ordered, limits: MicroBatchLimits) -> list[range]:
    """The places of the samples that make up each piece.

    A full piece is cut where the least has to be computed again: of the places in its latter half the one
    at which neighbours have least in common, so between groups rather than within one.
    """
    pieces: list[range] = []
    start, count = 0, len(batch.numbers)
    while start < count:
        sizes: list[int] = []
        end = start
        while end < count:
            more = len(batch.inputs[end]) - (batch.shared[end] if sizes else 0)
            size = more + (sizes[-1] if sizes else 0)
            if sizes and (size > limits.tokens or (limits.samples or count) <= len(sizes)):
                break
            sizes.append(size)
            end += 1
        if end < count:
            places = [start + n + 1 for n, size in enumerate(sizes) if 2 * size >= sizes[-1]]
            end = min(places, key=lambda place: (batch.shared[place], -place))
        pieces.append(range(start, end))
        start = end
    return pieces


def micro_batches(
    samples: Sequence[Sample], limits: MicroBatchLimits, device: torch.device | None = None, bucket: int = 1
) -> Iterator[MicroBatch]:
    """The batch in pieces, each on the device when its turn has come, with a multiple of `bucket` tokens."""
    batch = ordered(samples)
    return (_assemble(samples, batch, piece, device or torch.device("cpu"), bucket) for piece in pack(batch, limits))


def _assemble(samples: Sequence[Sample], batch: Ordered, piece: range, device: torch.device, bucket: int) -> MicroBatch:
    forest = build_tree([batch.inputs[place] for place in piece], [batch.shared[place] for place in piece])
    if len(forest.ids) % bucket:
        forest = forest.padded(-(-len(forest.ids) // bucket) * bucket)
    picked = [samples[batch.numbers[place]] for place in piece]
    wanted = [batch.predicted[place] for place in piece]
    counts = [len(places) for places in wanted]
    starts = np.cumsum([0, *(len(sample.ids) for sample in picked[:-1])])
    ones = np.ones(max(len(sample.ids) for sample in picked), dtype=np.float32)
    end_to_end = np.concatenate(wanted) + np.repeat(starts, counts)

    def column(values: Callable[[Sample], NDArray[Any]]) -> NDArray[Any]:
        found: NDArray[Any] = np.concatenate(list(map(values, picked)))[end_to_end]
        return found

    columns = {
        "ids": forest.ids,
        "positions": forest.depths,
        "at": np.concatenate([path[places - 1] for path, places in zip(forest.paths, wanted, strict=True)]),
        "targets": np.concatenate([batch.targets[place] for place in piece]),
        "weights": column(lambda sample: sample.weights),
        "advantages": column(lambda sample: sample.advantages),
        "sampling_logprobs": column(lambda sample: sample.sampling_logprobs),
        "old_logprobs": column(lambda s: s.sampling_logprobs if s.old_logprobs is None else s.old_logprobs),
        "corrections": column(lambda s: ones[: len(s.ids)] if s.corrections is None else s.corrections),
        "temperatures": np.repeat(np.array([s.temperature for s in picked], dtype=np.float32), counts),
        "sample_index": np.repeat([batch.numbers[place] for place in piece], counts),
    }
    numbers = [torch.from_numpy(np.ascontiguousarray(values)) for values in columns.values()]
    look = rectangles(forest.runs) if device.type == "cpu" else spans(forest)
    there = sent([*numbers, *(look.arrays() if isinstance(look, Spans) else ())], device)
    if isinstance(look, Spans):
        look = Spans(*there[len(numbers) :])
    return MicroBatch(look=look, **dict(zip(columns, there, strict=False)))
