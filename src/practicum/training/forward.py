"""Passes over a packed batch: hidden states where predictions are made, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.algorithms import kl
from practicum.models.decoder import Decoder, token_logprobs
from practicum.models.prefix_tree import Spans
from practicum.training.micro_batches import MicroBatch, MicroBatchLimits, Sample, micro_batches

if TYPE_CHECKING:
    from practicum.kernels.cuda_graphs import Replays

LOGIT_ROWS = 4_000_000
"""Logits held at once (predictions × vocabulary): larger batches go through the head in pieces."""


def hidden_at(decoder: Decoder, micro: MicroBatch, replays: Replays | None = None) -> Tensor:
    """Hidden states [P, E] at the tokens where predictions are made."""
    if isinstance(micro.look, Spans):
        from practicum.kernels.packed_forward import packed_hidden  # needs Triton

        where = (micro.ids, micro.positions, micro.look)
        hidden = packed_hidden(decoder, *where) if replays is None else replays.hidden(*where)
        return hidden[micro.at]  # not index_select: it adds gradients up in whatever order they come on a GPU
    grouped = decoder.shape.heads != decoder.shape.kv_heads
    sights, places = micro.look.sights, micro.look.places

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = []
        for sight in sights:
            asked, keys, values = _laid_out(q, sight.queries), _laid_out(k, sight.keys), _laid_out(v, sight.keys)
            answer = F.scaled_dot_product_attention(asked, keys, values, attn_mask=sight.visible, enable_gqa=grouped)
            mixed.append(answer.transpose(1, 2).flatten(0, 1))
        return torch.cat(mixed).flatten(1).index_select(0, places)

    return decoder.hidden(micro.ids, micro.positions, attend).index_select(0, micro.at)


def _laid_out(x: Tensor, where: Tensor) -> Tensor:
    """Tokens [N, H, D] as padded rows [B, H, L, D]."""
    return x.flatten(1).index_select(0, where.flatten()).view(*where.shape, *x.shape[1:]).transpose(1, 2)


def pieces(count: int, vocabulary: int) -> Iterator[slice]:
    """`count` predictions in pieces whose logits fit."""
    step = max(1, LOGIT_ROWS // vocabulary)
    return (slice(start, start + step) for start in range(0, count, step))


def fused_head(decoder: Decoder) -> bool:
    """Whether the head is a plain matrix on a GPU, so that a kernel can go from hidden states to log-probs."""
    head = decoder.model.lm_head
    return decoder.device.type == "cuda" and type(head) is torch.nn.Linear and head.bias is None


def read_off(decoder: Decoder, hidden: Tensor, micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """Log-probs of a micro-batch's targets and the entropies [P], by kernel."""
    from practicum.kernels.lm_head import HeadLogprobs  # needs Triton

    weight = decoder.model.lm_head.weight
    found: tuple[Tensor, Tensor] = HeadLogprobs.apply(hidden, weight, micro.targets, micro.temperatures)  # type: ignore[no-untyped-call]
    return found


def head_logprobs(decoder: Decoder, hidden: Tensor, micro: MicroBatch) -> Tensor:
    """Log-probs of a piece's targets [P]."""
    if fused_head(decoder):
        return read_off(decoder, hidden, micro)[0]
    return torch.cat(
        [
            token_logprobs(decoder.logits(hidden[part]), micro.targets[part], micro.temperatures[part, None])
            for part in pieces(len(hidden), decoder.shape.vocabulary)
        ]
    )


def gather(micro: MicroBatch, values: Sequence[Tensor]) -> Tensor:
    """Numbers given one a prediction of each sample, in the order of a micro-batch's predictions [P]."""
    return torch.cat([values[index] for index, _ in _owners(micro)]).to(micro.sample_index.device)


def _owners(micro: MicroBatch) -> list[tuple[int, int]]:
    """The samples of a micro-batch in order, each with the number of its predictions."""
    found, counts = torch.unique_consecutive(micro.sample_index.cpu(), return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))


@torch.no_grad()
def measure(
    samples: Sequence[Sample], limits: MicroBatchLimits, device: torch.device, of: Callable[[MicroBatch], Tensor]
) -> list[Tensor]:
    """What `of` gives for every prediction, sample by sample, in the order of its tokens."""
    result: list[Tensor] = [torch.empty(0)] * len(samples)
    for micro in micro_batches(samples, limits, device):
        owners = _owners(micro)
        parts = torch.split(of(micro).cpu(), [count for _, count in owners])
        for (index, _), part in zip(owners, parts, strict=True):
            result[index] = part.clone()
    return result


def logprobs(decoder: Decoder, samples: Sequence[Sample], limits: MicroBatchLimits) -> list[Tensor]:
    """Log-probs of every sample's predictions."""
    return measure(samples, limits, decoder.device, lambda m: head_logprobs(decoder, hidden_at(decoder, m), m))


def divergences(
    decoder: Decoder, reference: Decoder, samples: Sequence[Sample], kind: str, limits: MicroBatchLimits
) -> list[Tensor]:
    """A KL estimate of every sample's predictions, policy against reference."""

    def of(micro: MicroBatch) -> Tensor:
        mine, theirs = hidden_at(decoder, micro), hidden_at(reference, micro)
        return torch.cat(
            [
                divergence(decoder.logits(mine[part]), reference.logits(theirs[part]), micro, part, kind)
                for part in pieces(len(mine), decoder.shape.vocabulary)
            ]
        )

    return measure(samples, limits, decoder.device, of)


def divergence(logits: Tensor, reference: Tensor, micro: MicroBatch, part: slice, kind: str) -> Tensor:
    """The KL estimate of a piece of predictions [P] from both models' logits [P, V]."""
    temperature = micro.temperatures[part, None]
    mine = token_logprobs(logits, micro.targets[part], temperature)
    theirs = token_logprobs(reference, micro.targets[part], temperature)
    whole = kl.full(logits / temperature, reference / temperature) if kind.startswith("full") else None
    return kl.penalty(mine, theirs, kind, whole)
