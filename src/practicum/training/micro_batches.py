"""Trajectories to samples, and samples to micro-batches.

The origins of tokens become loss masks here and nowhere else. A batch of samples is split, and within a micro-batch a
shared prefix is computed once.

Sequences that begin alike (the chains of one prompt, or all prompts under one system message) share those tokens: a
micro-batch is a prefix tree in which each token attends to its own ancestors only, and the gradients are
those of the sequences computed singly. A prediction is (the token it is made at, the target token); index j of a
sequence's log-probs belongs to token j+1 and is predicted at token j.

Sequences come in the order of their ids, so each shares most with the one before it, and a token's descendants
follow it without a gap: token j is visible to token i exactly when j <= i < subtree_ends[j]. Consecutive tokens of one
path form a segment, and a segment attends to one path. On a CPU, attention is therefore a number of small dense
rectangles, one per segment, and what a segment cannot see is never computed; segments of similar size go together as
one padded batch (`PaddedAttentionPlan`). On a GPU it is block-sparse (`BlockAttentionPlan`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from practicum.chat.grammar import Grammars, TokenMasks
from practicum.chat.sampling_mask import KeptTokens, decode_kept
from practicum.errors import UserError
from practicum.kernels.attention_plan import BlockAttentionPlan, Segment, block_attention_plan
from practicum.training.estimators import turn_lengths
from practicum.trajectory import Origin, Span, Trajectory, Turn, is_trained
from practicum.utils.arrays import BoolArray, Float32Array, FloatArray, IntArray

MAX_PADDING_RATIO = 1.25
"""Scores that a padded batch of segments may compute, over those that are needed."""
FREE_PADDING_SCORES = 20_000
"""Scores of padding that cost less than a further batch."""
ALIGNMENT_BYTES = 16
"""Addresses that are multiples of it are read in wide loads; others need kernels compiled apart."""


def sft_samples(episodes: Sequence[Trajectory], roles: Collection[str] | None = None) -> list[Sample]:
    """Return the samples of scored episodes; every token that the demonstrator wrote has weight one, no other any.

    `roles` are the roles to train, None: all.
    """
    return [
        replace(sample, weights=sample.mask.astype(np.float32))
        for episode in episodes
        if episode.scored
        for sample in unweighted_samples(episode, roles=roles)
    ]


def unweighted_samples(
    episode: Trajectory,
    temperature: float = 1.0,
    roles: Collection[str] | None = None,
    own: Collection[str] | None = None,
    grammars: Grammars | None = None,
) -> list[Sample]:
    """Return a sample per sequence of an episode, with mask and sampling log-probs, weights and advantages zero.

    `roles` are the trained ones, None: all. With `own`, only the tokens of these roles are in the masks: those of the
    others are trained by another model. Sequences without a token to train are left out. A turn that was sampled at
    another temperature than the episode has its own. With `grammars`, a reply that was sampled under a response format
    or with top-k, top-p or min-p is predicted among the tokens that it was sampled among; without, among all, as in
    supervised fine-tuning.
    """
    return list(_samples(episode, turn_lengths(episode, roles), temperature, own, grammars))


def weighted_samples(
    episode: Trajectory,
    lengths: Sequence[int],
    weights: Float32Array,
    advantages: FloatArray,
    temperature: float = 1.0,
    own: Collection[str] | None = None,
    grammars: Grammars | None = None,
) -> list[Sample]:
    """Return the samples of `unweighted_samples` with weights and advantages, each one number per trained token.

    `lengths` are the numbers of trained tokens of every turn.
    """
    return list(_samples(episode, lengths, temperature, own, grammars, (weights, advantages)))


def cache_token_masks(episodes: Iterable[Trajectory], roles: Collection[str] | None, grammars: Grammars | None) -> None:
    """Compute the masks of all trained replies with a response format at once, on several threads."""
    if grammars is None:
        return
    replies = [
        (turn.response_format, span.ids)
        for episode in episodes
        for turn in episode.turns
        if turn.response_format is not None and is_trained(turn, roles)
        for span in turn.spans
        if span.origin is Origin.SAMPLED and span.ids and span.kept is None
    ]
    if replies:
        grammars.token_masks(replies)


def scatter(sample: Sample, values: FloatArray | Float32Array) -> Float32Array:
    """Return values of the predicted tokens [P] at their positions in the sample [T], zero elsewhere."""
    return _scatter(sample.mask, values)


def _scatter(mask: BoolArray, values: FloatArray | Float32Array) -> Float32Array:
    result = np.zeros(len(mask), dtype=np.float32)
    result[mask] = values
    return result


def _samples(
    episode: Trajectory,
    lengths: Sequence[int],
    temperature: float,
    own: Collection[str] | None,
    grammars: Grammars | None,
    values: tuple[Float32Array, FloatArray] | None = None,
) -> Iterator[Sample]:
    """A sample for every path of turns that has a token to train; a token is trained in the first path that has it.

    `lengths` are the numbers of trained tokens of every turn, `values` their weights and advantages (None: zeros).
    """
    starts = [0, *itertools.accumulate(lengths)]
    seen: set[int] = set()
    for path in episode.paths():
        turns = [episode.turns[index] for index in path]
        ids = tuple(itertools.chain.from_iterable([span.ids for turn in turns for span in turn.spans]))
        mask, logprobs = np.zeros(len(ids), dtype=np.bool_), np.zeros(len(ids), dtype=np.float32)
        positions: list[IntArray] = []
        temperatures: list[tuple[float, int]] = []
        masks: list[tuple[int, TokenMasks | KeptTokens]] = []
        end = 0
        for index, turn in zip(path, turns, strict=True):
            trained = lengths[index] > 0 and index not in seen and is_trained(turn, own)
            for span in turn.spans:
                start, end = end, end + len(span.ids)
                if trained and span.origin is Origin.SAMPLED:
                    mask[start:end] = True
                    if span.logprobs is not None:
                        logprobs[start:end] = span.logprobs
                    if grammars is not None and (allowed := _allowed_tokens(turn, span, grammars)) is not None:
                        masks.append((start, allowed))
            if trained:
                positions.append(np.arange(starts[index], starts[index + 1]))
                temperatures.append((temperature if turn.temperature is None else turn.temperature, lengths[index]))
        seen.update(path)
        if not positions:
            continue
        joined = positions[0] if len(positions) == 1 else np.concatenate(positions)
        if values is None:
            weights = advantages = np.zeros(len(ids), dtype=np.float32)
        else:
            weights, advantages = (_scatter(mask, own_values[joined]) for own_values in values)
        sampled_at: float | Float32Array = temperatures[0][0]
        if any(value != sampled_at for value, _ in temperatures):
            counts = [count for _, count in temperatures]
            sampled_at = _scatter(mask, np.repeat(np.array([value for value, _ in temperatures]), counts))
        yield Sample(ids, mask, weights, advantages, logprobs, sampled_at, positions=joined, token_masks=tuple(masks))


def _allowed_tokens(turn: Turn, span: Span, grammars: Grammars) -> TokenMasks | KeptTokens | None:
    """The tokens that each token of a reply was sampled among; None: all."""
    if span.kept is not None:
        sets = decode_kept(span.kept)
        if len(sets) != len(span.ids):
            raise UserError(f"A reply of {len(span.ids)} tokens has the kept tokens of {len(sets)}; collect it again.")
        return KeptTokens(sets)
    if turn.response_format is None or not span.ids:
        return None
    return grammars.token_masks([(turn.response_format, span.ids)])[0]


def in_token_order(samples: Sequence[Sample], values: Sequence[NDArray[Any]]) -> FloatArray:
    """Return values of the samples of one trajectory, one per prediction, in the order of its trained tokens."""
    if not samples:
        return np.zeros(0)
    result = np.zeros(sum(map(len, values)))
    for sample, own in zip(samples, values, strict=True):
        result[sample.positions] = own
    return result


@dataclass(frozen=True)
class Sample:
    """One sequence for the learner; all arrays are [T]. The first token cannot be predicted, so its mask is False.

    `old_logprobs` are what ratios are taken against: the engine's own unless the learner computed
    them again, and then `corrections` weighs each token's policy gradient for the difference. `temperature` is one
    number, or one per token. `positions` [P] are the places of the masked tokens among those that are trained in the
    whole trajectory, in the order of its turns. `token_masks` are the tokens that parts of the sequence were sampled
    among, each with the position of its first token; all others were sampled among all tokens.
    """

    ids: tuple[int, ...]
    mask: BoolArray
    weights: Float32Array
    advantages: Float32Array
    sampling_logprobs: Float32Array
    temperature: float | Float32Array = 1.0
    old_logprobs: Float32Array | None = None
    corrections: Float32Array | None = None
    positions: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    token_masks: tuple[tuple[int, TokenMasks | KeptTokens], ...] = ()

    def __post_init__(self) -> None:
        arrays = (self.mask, self.weights, self.advantages, self.sampling_logprobs, self.old_logprobs, self.corrections)
        count = len(self.ids)
        for array in arrays:
            if array is not None and len(array) != count:
                raise ValueError("a sample's arrays must have one entry per token")
        if count and self.mask[0]:
            raise ValueError("the first token of a sequence cannot be predicted")


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
class MicroBatch:
    """N tokens of a prefix tree and the P predictions made in it."""

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    attention_plan: PaddedAttentionPlan | BlockAttentionPlan
    token_index: Tensor  # [P] the token a prediction is made at
    targets: Tensor  # [P]
    weights: Tensor  # [P]
    advantages: Tensor  # [P]
    sampling_logprobs: Tensor  # [P]
    old_logprobs: Tensor  # [P]
    corrections: Tensor  # [P]
    temperatures: Tensor  # [P]
    sample_index: Tensor  # [P] the sample a prediction belongs to
    mask_rows: Tensor | None = None  # [P] row of `mask_table`, -1: any token may be sampled; None: all of them
    mask_table: Tensor | None = None  # [U, words] the tokens that may be sampled, one bit each
    num_tokens: int = 0
    """N without padding."""


@dataclass(frozen=True)
class MicroBatchLimits:
    """How large a micro-batch may be; no gradient depends on it beyond rounding.

    At most `tokens` tokens (a longer sequence has a micro-batch of its own), and at most `samples` samples if given.
    """

    tokens: int = 480
    samples: int | None = None


@dataclass(frozen=True)
class SortedBatch:
    """The samples of a batch with at least one prediction, sorted by their ids.

    What follows a sequence's last prediction is input to nothing and left out.
    """

    sample_indices: list[int]
    predicted: list[IntArray]  # per sample, the positions of the tokens that are predicted
    inputs: list[IntArray]  # per sample, the ids that are fed
    targets: list[IntArray]  # per sample, the ids that are predicted
    shared: list[int]  # per sample, the length of the prefix it shares with the previous one


def sort_samples(samples: Sequence[Sample]) -> SortedBatch:
    """Sort samples by their ids, so that those with a long common prefix are neighbours."""
    predicted = [np.flatnonzero(sample.mask) for sample in samples]
    ids = [np.fromiter(sample.ids, dtype=np.int64) for sample in samples]
    fed = {index: ids[index][: positions[-1]] for index, positions in enumerate(predicted) if len(positions)}
    # Big-endian bytes sort as the ids do, and are faster to compare.
    keys = {index: sequence.astype(">u4").tobytes() for index, sequence in fed.items()}
    order = sorted(keys, key=keys.__getitem__)
    predicted = [predicted[index] for index in order]
    inputs = [fed[index] for index in order]
    targets = [ids[index][positions] for index, positions in zip(order, predicted, strict=True)]
    shared = [shared_prefix_length(inputs[rank - 1], own) if rank else 0 for rank, own in enumerate(inputs)]
    return SortedBatch(order, predicted, inputs, targets, shared)


def pack(batch: SortedBatch, limits: MicroBatchLimits) -> list[range]:
    """Return the ranges of sorted samples that make up each micro-batch.

    A full micro-batch ends where the least has to be computed again: of the boundaries in its second half, the one
    at which neighbours share the shortest prefix, so between groups rather than within one.
    """
    ranges: list[range] = []
    start, count = 0, len(batch.sample_indices)
    while start < count:
        sizes: list[int] = []
        end = start
        while end < count:
            num_new = len(batch.inputs[end]) - (batch.shared[end] if sizes else 0)
            size = num_new + (sizes[-1] if sizes else 0)
            if sizes and (size > limits.tokens or (limits.samples or count) <= len(sizes)):
                break
            sizes.append(size)
            end += 1
        if end < count:
            boundaries = [start + n + 1 for n, size in enumerate(sizes) if 2 * size >= sizes[-1]]
            end = min(boundaries, key=lambda boundary: (batch.shared[boundary], -boundary))
        ranges.append(range(start, end))
        start = end
    return ranges


def micro_batches(
    samples: Sequence[Sample], limits: MicroBatchLimits, device: torch.device | None = None, bucket: int = 1
) -> Iterator[MicroBatch]:
    """Yield the micro-batches of a batch, each copied to the device when it is needed.

    Each is padded to a multiple of `bucket` tokens.
    """
    batch = sort_samples(samples)
    return (_assemble(samples, batch, ranks, device or torch.device("cpu"), bucket) for ranks in pack(batch, limits))


def attention_plan(tree: PrefixTree, device: torch.device) -> PaddedAttentionPlan | BlockAttentionPlan:
    """Return how attention over a tree is computed on a device; the plan's tensors are still on the CPU."""
    return padded_attention_plan(tree.segments) if device.type == "cpu" else tree.block_plan()


def _assemble(
    samples: Sequence[Sample], batch: SortedBatch, ranks: range, device: torch.device, bucket: int
) -> MicroBatch:
    tree = build_tree([batch.inputs[rank] for rank in ranks], [batch.shared[rank] for rank in ranks])
    num_tokens = len(tree.ids)
    if len(tree.ids) % bucket:
        tree = tree.padded(-(-len(tree.ids) // bucket) * bucket)
    columns = {"ids": tree.ids, "positions": tree.depths, **_prediction_columns(samples, batch, ranks, tree)}
    columns |= _mask_columns(samples, batch, ranks)
    tensors = [torch.from_numpy(np.ascontiguousarray(values).ravel()) for values in columns.values()]
    plan = attention_plan(tree, device)
    on_device = copy_to_device([*tensors, *(plan.arrays() if isinstance(plan, BlockAttentionPlan) else ())], device)
    if isinstance(plan, BlockAttentionPlan):
        plan = BlockAttentionPlan(*on_device[len(tensors) :])
    fields = {name: tensor.view(columns[name].shape) for name, tensor in zip(columns, on_device, strict=False)}
    return MicroBatch(attention_plan=plan, num_tokens=num_tokens, **fields)


def _mask_columns(samples: Sequence[Sample], batch: SortedBatch, ranks: range) -> dict[str, NDArray[Any]]:
    """The fields of a MicroBatch with the tokens that could be sampled; none where that is all of them."""
    own = [(samples[batch.sample_indices[rank]], batch.predicted[rank]) for rank in ranks]
    words = max((part.num_words for sample, _ in own for _, part in sample.token_masks), default=0)
    if not words:
        return {}
    index: dict[bytes, int] = {}
    rows: list[IntArray] = []
    for sample, predicted in own:
        row_of_token = np.full(len(sample.ids), -1, dtype=np.int64)
        for start, part in sample.token_masks:
            table = np.pad(part.table, ((0, 0), (0, words - part.num_words)))
            numbers = np.array([index.setdefault(mask.tobytes(), len(index)) for mask in table] + [-1])  # -1 stays -1
            row_of_token[start : start + len(part.rows)] = numbers[part.rows]
        rows.append(row_of_token[predicted])
    table = np.frombuffer(bytearray(b"".join(index)), dtype=np.int32).reshape(len(index), words)
    return {"mask_rows": np.concatenate(rows), "mask_table": table}


def _temperatures(own: Sequence[Sample], predicted: Sequence[IntArray]) -> Float32Array:
    """The sampling temperature of every prediction [P]."""
    if all(isinstance(sample.temperature, int | float) for sample in own):
        values = np.array([sample.temperature for sample in own], dtype=np.float32)
        return np.repeat(values, [len(positions) for positions in predicted])
    return np.concatenate(
        [
            np.full(len(positions), sample.temperature, dtype=np.float32)
            if isinstance(sample.temperature, int | float)
            else sample.temperature[positions].astype(np.float32)
            for sample, positions in zip(own, predicted, strict=True)
        ]
    )


def _prediction_columns(
    samples: Sequence[Sample], batch: SortedBatch, ranks: range, tree: PrefixTree
) -> dict[str, NDArray[Any]]:
    """The fields of a MicroBatch with one entry per prediction [P]."""
    own = [samples[batch.sample_indices[rank]] for rank in ranks]
    predicted = [batch.predicted[rank] for rank in ranks]
    counts = [len(positions) for positions in predicted]
    starts = np.cumsum([0, *(len(sample.ids) for sample in own[:-1])])
    ones = np.ones(max(len(sample.ids) for sample in own), dtype=np.float32)
    flat_index = np.concatenate(predicted) + np.repeat(starts, counts)  # into the samples' arrays, end to end

    def column(values: Callable[[Sample], NDArray[Any]]) -> NDArray[Any]:
        result: NDArray[Any] = np.concatenate(list(map(values, own)))[flat_index]
        return result

    return {
        "token_index": np.concatenate(
            [path[positions - 1] for path, positions in zip(tree.paths, predicted, strict=True)]
        ),
        "targets": np.concatenate([batch.targets[rank] for rank in ranks]),
        "weights": column(lambda sample: sample.weights),
        "advantages": column(lambda sample: sample.advantages),
        "sampling_logprobs": column(lambda sample: sample.sampling_logprobs),
        "old_logprobs": column(lambda s: s.sampling_logprobs if s.old_logprobs is None else s.old_logprobs),
        "corrections": column(lambda s: ones[: len(s.ids)] if s.corrections is None else s.corrections),
        "temperatures": _temperatures(own, predicted),
        "sample_index": np.repeat([batch.sample_indices[rank] for rank in ranks], counts),
    }


# -- the prefix tree ------------------------------------------------------------------------


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

    def block_plan(self) -> BlockAttentionPlan:
        """Return the block lists that the kernels of a GPU read, on the CPU."""
        segments = self.segments[: len(self.segments) - self.num_padding]
        return block_attention_plan(self.subtree_ends, segments, self.num_padding)


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
