"""A forward pass over packed tokens [N] on a GPU: of training, with gradients, and of prompts, into the KV buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from practicum.kernels.attention_plan import BlockAttentionPlan
from practicum.kernels.fused_layers import (
    AddNorm,
    HeadNorm,
    NormLinear,
    SiluAndMul,
    SiluAndMulLinear,
    add_norm,
    silu_and_mul,
)
from practicum.kernels.tree_attention import TreeAttention
from practicum.models.decoder import Decoder, FusedLinear, Layer

Attend = Callable[[int, Tensor], Tensor]
"""(layer, joined projections [N, (H + 2K)·D]) -> [N, H·D]"""


def linear(fused: FusedLinear, x: Tensor) -> Tensor:
    """All outputs of layers with one input, joined [N, out]."""
    joined = fused.joined(x)
    if joined is not None:
        return joined
    parts = fused(x)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def packed_hidden(decoder: Decoder, ids: Tensor, positions: Tensor, plan: BlockAttentionPlan) -> Tensor:
    """Final hidden states [N, E] of a prefix tree's tokens."""
    hidden: Tensor = decoder.run(_packed_hidden, decoder, ids, positions, plan)
    return hidden


def _packed_hidden(decoder: Decoder, ids: Tensor, positions: Tensor, plan: BlockAttentionPlan) -> Tensor:
    x = F.embedding(ids, decoder.model.model.embed_tokens.weight)
    return forward_layers(decoder, x.float(), positions, plan)


def forward_layers(decoder: Decoder, x: Tensor, positions: Tensor, plan: BlockAttentionPlan) -> Tensor:
    """Final hidden states [N, E] of embeddings [N, E].

    The residual stream is float32, the embeddings too; products are in the weights' dtype.
    """
    shape, tables = decoder.shape, decoder.tables

    def attend(index: int, joined: Tensor) -> Tensor:
        attended: Tensor = TreeAttention.apply(joined, positions, tables, plan, shape.heads, shape.kv_heads)  # type: ignore[no-untyped-call]
        return attended

    delta: Tensor | None = None
    for index, layer in enumerate(decoder.layers):
        x, delta = decoder.run_layer(index, _checkpointed_layer, decoder, index, layer, x, delta, attend)
    return _add_norm(decoder, x, delta, decoder.final_norm)[1]


def _checkpointed_layer(decoder: Decoder, *arguments: Any) -> tuple[Tensor, Tensor]:
    """`_layer`, whose activations are computed again for the gradient where that was asked for."""
    if decoder.checkpointing and torch.is_grad_enabled():
        recomputed: tuple[Tensor, Tensor] = checkpoint(_layer, decoder, *arguments, use_reentrant=False)
        return recomputed
    return _layer(decoder, *arguments)


def _layer(
    decoder: Decoder, index: int, layer: Layer, x: Tensor, delta: Tensor | None, attend: Attend
) -> tuple[Tensor, Tensor]:
    """The residual stream and what is still to be added to it."""
    x, joined = _norm_linear(decoder, x, delta, layer.before_attention, layer.qkv)
    attended = attend(index, apply_head_norms(decoder, layer, joined))
    x, joined = _norm_linear(decoder, x, linear(layer.out, attended), layer.before_mlp, layer.gate_up)
    (down,) = layer.down.linears
    if not torch.is_grad_enabled():
        return x, linear(layer.down, silu_and_mul(joined))
    result: Tensor
    if layer.down.plain and down.bias is None:
        result = SiluAndMulLinear.apply(joined, down.weight)
    else:
        result = linear(layer.down, SiluAndMul.apply(joined))  # type: ignore[no-untyped-call]
    return x, result


def _norm_linear(
    decoder: Decoder, x: Tensor, delta: Tensor | None, norm: Tensor, fused: FusedLinear
) -> tuple[Tensor, Tensor]:
    """The residual stream with `delta` added, and its norm through `fused`."""
    if torch.is_grad_enabled() and fused.plain:
        parameters = [module.weight for module in fused.linears]
        parameters += [module.bias for module in fused.linears if module.bias is not None]
        result: tuple[Tensor, Tensor] = NormLinear.apply(  # type: ignore[no-untyped-call]
            x, delta, norm, decoder.epsilon, fused.weight, fused.bias, fused.sizes, *parameters
        )
        return result
    x, normed = _add_norm(decoder, x, delta, norm)
    return x, linear(fused, normed)


def _add_norm(decoder: Decoder, x: Tensor, delta: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    if torch.is_grad_enabled():
        result: tuple[Tensor, Tensor] = AddNorm.apply(x, delta, weight, decoder.epsilon)  # type: ignore[no-untyped-call]
        return result
    return x, add_norm(x, delta, weight, decoder.epsilon, x)  # nobody else needs the stream without delta


def apply_head_norms(decoder: Decoder, layer: Layer, joined: Tensor) -> Tensor:
    """Norm each query's and key's head before its rotation, where the model does (Qwen3)."""
    if layer.q_norm is None or layer.k_norm is None:
        return joined
    shape = decoder.shape
    result: Tensor = HeadNorm.apply(joined, layer.q_norm, layer.k_norm, decoder.epsilon, shape.heads, shape.kv_heads)  # type: ignore[no-untyped-call]
    return result


def prefill_forward(decoder: Decoder, ids: Tensor, attend: Attend) -> None:
    """Run packed prompts through the layers for the keys and values that `attend` stores; ends after the last ones."""
    x = F.embedding(ids, decoder.model.model.embed_tokens.weight).float()
    delta: Tensor | None = None
    for index, layer in enumerate(decoder.layers):
        if index == decoder.shape.layers - 1:
            _, joined = _norm_linear(decoder, x, delta, layer.before_attention, layer.qkv)
            attend(index, apply_head_norms(decoder, layer, joined))
            return
        x, delta = _layer(decoder, index, layer, x, delta, attend)
