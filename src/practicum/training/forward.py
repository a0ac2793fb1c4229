"""Forward passes over micro-batches: hidden states where predictions are made, log-probs, and KL estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.algorithms import kl
from practicum.models.decoder import Decoder, token_logprobs
from practicum.models.prefix_tree import BlockAttentionPlan
from practicum.training.micro_batches import MicroBatch, MicroBatchLimits, Sample, micro_batches

if TYPE_CHECKING:
    from practicum.kernels.cuda_graphs import LayerGraphs

MAX_LOGITS = 4_000_000
"""Logits held at once (predictions × vocabulary): more predictions go through the LM head in chunks."""


def hidden_states(decoder: Decoder, micro: MicroBatch, graphs: LayerGraphs | None = None) -> Tensor:
    """Return the hidden states [P, E] at the tokens where predictions are made; `graphs` replays the layers."""
    if isinstance(micro.attention_plan, BlockAttentionPlan):
        from practicum.kernels.packed_forward import packed_hidden  # needs Triton

        inputs = (micro.ids, micro.positions, micro.attention_plan)
        hidden = packed_hidden(decoder, *inputs) if graphs is None else graphs.hidden(*inputs)
        # Not index_select: on a GPU its backward adds gradients in no fixed order.
        return hidden[micro.token_index]
    grouped = decoder.shape.heads != decoder.shape.kv_heads
    batches, output_index = micro.attention_plan.batches, micro.attention_plan.output_index

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs = []
        for batch in batches:
            queries, keys, values = _padded(q, batch.queries), _padded(k, batch.keys), _padded(v, batch.keys)
            output = F.scaled_dot_product_attention(queries, keys, values, attn_mask=batch.visible, enable_gqa=grouped)
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).flatten(1).index_select(0, output_index)

    return decoder.hidden(micro.ids, micro.positions, attend).index_select(0, micro.token_index)


def _padded(x: Tensor, index: Tensor) -> Tensor:
    """Tokens [N, H, D] as padded rows [B, H, L, D]; `index` is [B, L]."""
    return x.flatten(1).index_select(0, index.flatten()).view(*index.shape, *x.shape[1:]).transpose(1, 2)


def chunks(count: int, vocabulary: int) -> Iterator[slice]:
    """Yield slices of `count` predictions whose logits are at most MAX_LOGITS."""
    step = max(1, MAX_LOGITS // vocabulary)
    return (slice(start, start + step) for start in range(0, count, step))


def fused_head(decoder: Decoder) -> bool:
    """Return whether the LM head is a plain matrix on a GPU: then one kernel computes log-probs from hidden states."""
    head = decoder.model.lm_head
    return decoder.device.type == "cuda" and type(head) is torch.nn.Linear and head.bias is None


def fused_logprobs(decoder: Decoder, hidden: Tensor, micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """Return the log-probs of a micro-batch's targets [P] and the entropies [P], computed by a kernel."""
    from practicum.kernels.lm_head import HeadLogprobs  # needs Triton

    weight = decoder.model.lm_head.weight
    result: tuple[Tensor, Tensor] = HeadLogprobs.apply(hidden, weight, micro.targets, micro.temperatures)  # type: ignore[no-untyped-call]
    return result


def head_logprobs(decoder: Decoder, hidden: Tensor, micro: MicroBatch) -> Tensor:
    """Return the log-probs of a micro-batch's targets [P] from the hidden states [P, E]."""
    if fused_head(decoder):
        return fused_logprobs(decoder, hidden, micro)[0]
    return torch.cat(
        [
            token_logprobs(decoder.logits(hidden[chunk]), micro.targets[chunk], micro.temperatures[chunk, None])
            for chunk in chunks(len(hidden), decoder.shape.vocabulary)
        ]
    )


def logprobs_and_entropies(
    logits: Tensor, micro: MicroBatch, chunk: slice, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return the log-probs of a chunk's targets [C] and the entropies [C] from the logits [C, V]."""
    scaled = logits.float() / micro.temperatures[chunk, None]
    logprobs = token_logprobs(scaled, micro.targets[chunk])
    with torch.set_grad_enabled(entropy_gradient):
        distribution = scaled.log_softmax(-1)
        return logprobs, -torch.linalg.vecdot(distribution.exp(), distribution)


def gather(micro: MicroBatch, values: Sequence[Tensor]) -> Tensor:
    """Return values given per sample, one per prediction, in the order of a micro-batch's predictions [P]."""
    return torch.cat([values[index] for index, _ in _sample_counts(micro)]).to(micro.sample_index.device)


def _sample_counts(micro: MicroBatch) -> list[tuple[int, int]]:
    """The samples of a micro-batch in order, each with the number of its predictions."""
    indices, counts = torch.unique_consecutive(micro.sample_index.cpu(), return_counts=True)
    return list(zip(indices.tolist(), counts.tolist(), strict=True))


@torch.no_grad()
def per_sample(
    samples: Sequence[Sample],
    limits: MicroBatchLimits,
    device: torch.device,
    function: Callable[[MicroBatch], Tensor],
) -> list[Tensor]:
    """Return what `function` gives per prediction, as one tensor per sample in the order of its tokens."""
    result: list[Tensor] = [torch.empty(0)] * len(samples)
    for micro in micro_batches(samples, limits, device):
        counts = _sample_counts(micro)
        values = torch.split(function(micro).cpu(), [count for _, count in counts])
        for (index, _), own in zip(counts, values, strict=True):
            result[index] = own.clone()
    return result


def logprobs(decoder: Decoder, samples: Sequence[Sample], limits: MicroBatchLimits) -> list[Tensor]:
    """Return the log-probs of every sample's predictions, one tensor per sample."""
    return per_sample(samples, limits, decoder.device, lambda m: head_logprobs(decoder, hidden_states(decoder, m), m))


def divergences(
    decoder: Decoder, reference: Decoder, samples: Sequence[Sample], kind: str, limits: MicroBatchLimits
) -> list[Tensor]:
    """Return a KL estimate of every sample's predictions, policy against reference, one tensor per sample."""

    def function(micro: MicroBatch) -> Tensor:
        hidden, reference_hidden = hidden_states(decoder, micro), hidden_states(reference, micro)
        return torch.cat(
            [
                divergence(decoder.logits(hidden[chunk]), reference.logits(reference_hidden[chunk]), micro, chunk, kind)
                for chunk in chunks(len(hidden), decoder.shape.vocabulary)
            ]
        )

    return per_sample(samples, limits, decoder.device, function)


def divergence(logits: Tensor, reference_logits: Tensor, micro: MicroBatch, chunk: slice, kind: str) -> Tensor:
    """Return the KL estimate of a chunk of predictions [C] from the logits of both models [C, V]."""
    temperature = micro.temperatures[chunk, None]
    logprobs = token_logprobs(logits, micro.targets[chunk], temperature)
    reference = token_logprobs(reference_logits, micro.targets[chunk], temperature)
    full = kl.full(logits / temperature, reference_logits / temperature) if kind.startswith("full") else None
    return kl.penalty(logprobs, reference, kind, full)
