"""A whole pass over packed tokens [N] on a GPU: the learner's, with gradients, and a prompt's, into the KV buffer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from practicum.kernels.forest_attention import ForestAttention
from practicum.kernels.layers import AddNorm, Gate, add_norm, gate
from practicum.models.decoder import Decoder, Fused, Layer
from practicum.training.forest import Spans

Mix = Callable[[int, Tensor], Tensor]
"""(layer, joined projections [N, (H + 2K)·D]) -> [N, H·D]"""


def product(fused: Fused, x: Tensor) -> Tensor:
    """All outputs of layers with one input, side by side."""
    joined = fused.joined(x)
    if joined is not None:
        return joined
    parts = fused(x)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def packed_hidden(decoder: Decoder, ids: Tensor, positions: Tensor, look: Spans) -> Tensor:
    """Final hidden states [N, E] of a forest's tokens."""
    shape, tables = decoder.shape, decoder.tables

    def mix(number: int, joined: Tensor) -> Tensor:
        mixed: Tensor = ForestAttention.apply(joined, positions, tables, look, shape.heads, shape.kv_heads)  # type: ignore[no-untyped-call]
        return mixed

    x = F.embedding(ids, decoder.model.model.embed_tokens.weight)
    added: Tensor | None = None
    for number, layer in enumerate(decoder.layers):
        if decoder.checkpointing and torch.is_grad_enabled():
            x, added = checkpoint(_layer, decoder, number, layer, x, added, mix, use_reentrant=False)
        else:
            x, added = _layer(decoder, number, layer, x, added, mix)
    return _add_norm(decoder, x, added, decoder.final_norm)[1]


def _layer(
    decoder: Decoder, number: int, layer: Layer, x: Tensor, added: Tensor | None, mix: Mix
) -> tuple[Tensor, Tensor]:
    """The residual stream and what is still to be added to it."""
    x, normal = _add_norm(decoder, x, added, layer.before_attention)
    mixed = mix(number, head_norms(decoder, layer, product(layer.qkv, normal)))
    x, normal = _add_norm(decoder, x, product(layer.out, mixed), layer.before_mlp)
    joined = product(layer.gate_up, normal)
    gated: Tensor = Gate.apply(joined) if torch.is_grad_enabled() else gate(joined)  # type: ignore[no-untyped-call]
    return x, product(layer.down, gated)


def _add_norm(decoder: Decoder, x: Tensor, added: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    if torch.is_grad_enabled():
        result: tuple[Tensor, Tensor] = AddNorm.apply(x, added, weight, decoder.epsilon)  # type: ignore[no-untyped-call]
        return result
    return x, add_norm(x, added, weight, decoder.epsilon, x)  # nobody else needs the stream as it was


def head_norms(decoder: Decoder, layer: Layer, joined: Tensor) -> Tensor:
    """Qwen3 norms each query's and key's head before it is turned."""
    if layer.q_norm is None or layer.k_norm is None:
        return joined
    size = decoder.shape.head_size
    parts = [part.view(len(part), -1, size) for part in torch.split(joined, layer.qkv.sizes, dim=-1)]
    norms = (layer.q_norm, layer.k_norm)
    normed = [F.rms_norm(part, (size,), weight, decoder.epsilon) for part, weight in zip(parts, norms, strict=False)]
    return torch.cat([*normed, parts[2]], dim=-2).flatten(-2)


def prompt_pass(decoder: Decoder, ids: Tensor, mix: Mix) -> None:
    """The layers of packed prompts for what `mix` does with their keys and values; after the last it ends."""
    x = F.embedding(ids, decoder.model.model.embed_tokens.weight)
    added: Tensor | None = None
    for number, layer in enumerate(decoder.layers):
        if number == decoder.shape.layers - 1:
            mix(
                number,
                head_norms(decoder, layer, product(layer.qkv, _add_norm(decoder, x, added, layer.before_attention)[1])),
            )
            return
        x, added = _layer(decoder, number, layer, x, added, mix)
