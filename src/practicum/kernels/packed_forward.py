"""A whole pass over packed tokens [N] on a GPU: the learner's, with gradients, and a prompt's, into the KV buffer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from practicum.kernels.fused_layers import AddNorm, Gate, GateProduct, NormHeads, NormProduct, add_norm, gate
from practicum.kernels.tree_attention import ForestAttention
from practicum.models.decoder import Decoder, Fused, Layer
from practicum.models.prefix_tree import BlockAttentionPlan

Mix = Callable[[int, Tensor], Tensor]
"""(layer, joined projections [N, (H + 2K)·D]) -> [N, H·D]"""


def product(fused: Fused, x: Tensor) -> Tensor:
    """All outputs of layers with one input, side by side."""
    joined = fused.joined(x)
    if joined is not None:
        return joined
    parts = fused(x)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def packed_hidden(decoder: Decoder, ids: Tensor, positions: Tensor, plan: BlockAttentionPlan) -> Tensor:
    """Final hidden states [N, E] of a forest's tokens."""
    x = F.embedding(ids, decoder.model.model.embed_tokens.weight)
    return through_layers(decoder, x.float(), positions, plan)


def through_layers(decoder: Decoder, x: Tensor, positions: Tensor, plan: BlockAttentionPlan) -> Tensor:
    """The same from their embeddings [N, E], in float32 as the residual stream is; products are in the weights' own."""
    shape, tables = decoder.shape, decoder.tables

    def mix(number: int, joined: Tensor) -> Tensor:
        mixed: Tensor = ForestAttention.apply(joined, positions, tables, plan, shape.heads, shape.kv_heads)  # type: ignore[no-untyped-call]
        return mixed

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
    x, joined = _normed_product(decoder, x, added, layer.before_attention, layer.qkv)
    mixed = mix(number, head_norms(decoder, layer, joined))
    x, joined = _normed_product(decoder, x, product(layer.out, mixed), layer.before_mlp, layer.gate_up)
    (down,) = layer.down.linears
    if not torch.is_grad_enabled():
        return x, product(layer.down, gate(joined))
    result: Tensor
    if layer.down.plain and down.bias is None:
        result = GateProduct.apply(joined, down.weight)
    else:
        result = product(layer.down, Gate.apply(joined))  # type: ignore[no-untyped-call]
    return x, result


def _normed_product(
    decoder: Decoder, x: Tensor, added: Tensor | None, norm: Tensor, fused: Fused
) -> tuple[Tensor, Tensor]:
    """The residual stream, and its norm through some layers."""
    if torch.is_grad_enabled() and fused.plain:
        parameters = [linear.weight for linear in fused.linears]
        parameters += [linear.bias for linear in fused.linears if linear.bias is not None]
        found: tuple[Tensor, Tensor] = NormProduct.apply(  # type: ignore[no-untyped-call]
            x, added, norm, decoder.epsilon, fused.weight, fused.bias, fused.sizes, *parameters
        )
        return found
    x, normal = _add_norm(decoder, x, added, norm)
    return x, product(fused, normal)


def _add_norm(decoder: Decoder, x: Tensor, added: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    if torch.is_grad_enabled():
        result: tuple[Tensor, Tensor] = AddNorm.apply(x, added, weight, decoder.epsilon)  # type: ignore[no-untyped-call]
        return result
    return x, add_norm(x, added, weight, decoder.epsilon, x)  # nobody else needs the stream as it was


def head_norms(decoder: Decoder, layer: Layer, joined: Tensor) -> Tensor:
    """Qwen3 norms each query's and key's head before it is turned."""
    if layer.q_norm is None or layer.k_norm is None:
        return joined
    shape = decoder.shape
    found: Tensor = NormHeads.apply(joined, layer.q_norm, layer.k_norm, decoder.epsilon, shape.heads, shape.kv_heads)  # type: ignore[no-untyped-call]
    return found


def prompt_pass(decoder: Decoder, ids: Tensor, mix: Mix) -> None:
    """The layers of packed prompts for what `mix` does with their keys and values; after the last it ends."""
    x = F.embedding(ids, decoder.model.model.embed_tokens.weight).float()
    added: Tensor | None = None
    for number, layer in enumerate(decoder.layers):
        if number == decoder.shape.layers - 1:
            _, joined = _normed_product(decoder, x, added, layer.before_attention, layer.qkv)
            mix(number, head_norms(decoder, layer, joined))
            return
        x, added = _layer(decoder, number, layer, x, added, mix)
