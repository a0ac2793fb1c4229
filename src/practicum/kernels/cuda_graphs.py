"""The trainer's layers as CUDA graphs: captured once per micro-batch size, then replayed.

A pass over a small model's layers is about a thousand launches, and the host is slower at them than the GPU. Packed
micro-batches are padded to round sizes; each size is captured when it is first needed. What a size saves between its
forward and its backward replay is in one memory pool that all sizes share: they never run at the same time. A
micro-batch of very many short segments has longer lists than a graph has room for, and runs without one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.kernels import CAPTURING
from practicum.kernels.attention_plan import BLOCK_TOKENS, QUERY_BLOCKS_PER_SPLIT, BlockAttentionPlan
from practicum.kernels.packed_forward import forward_layers, packed_hidden
from practicum.models.decoder import Decoder


class CapturedLayers:
    """All layers over N tokens: forward and backward, one graph each."""

    def __init__(self, decoder: Decoder, weights: list[torch.nn.Parameter], tokens: int, pool: Any) -> None:
        device, shape = decoder.device, decoder.shape
        self.weights = weights
        self.x = torch.zeros(tokens, shape.hidden, dtype=torch.float32, device=device, requires_grad=True)
        self.positions = torch.zeros(tokens, dtype=torch.int64, device=device)
        self.plan = BlockAttentionPlan(
            *(torch.zeros(size, dtype=torch.int32, device=device) for size in list_sizes(tokens))
        )
        self.grad_hidden = torch.zeros(tokens, shape.hidden, dtype=decoder.dtype, device=device)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # kernels are built and libraries have their workspaces before a capture
            self._backward(forward_layers(decoder, self.x, self.positions, self.plan))
        torch.cuda.current_stream().wait_stream(side)
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward, pool=pool, capture_error_mode="thread_local"):
            hidden = forward_layers(decoder, self.x, self.positions, self.plan)
        with torch.cuda.graph(self.backward, pool=pool, capture_error_mode="thread_local"):
            self.grad_x, *self.grad_weights = self._backward(hidden)
        self.hidden = hidden.detach()

    def _backward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(hidden, [self.x, *self.weights], self.grad_hidden)

    def set_inputs(self, x: Tensor, positions: Tensor, plan: BlockAttentionPlan) -> None:
        with torch.no_grad():
            self.x.copy_(x)
        self.positions.copy_(positions)
        self.plan.split_key_blocks.fill_(-1)
        self.plan.num_queries.zero_()
        for buffer, value in zip(self.plan.arrays(), plan.arrays(), strict=True):
            buffer[: len(value)].copy_(value)


def list_sizes(tokens: int) -> tuple[int, ...]:
    """Room for each list of a `BlockAttentionPlan` in a graph over this many tokens; segments may be short."""
    blocks = -(-tokens // BLOCK_TOKENS)
    pairs = blocks * (blocks + 1) // 2
    queries = 3 * blocks
    return (
        tokens, blocks + 1, pairs, blocks + 1, pairs, blocks + 1, blocks + pairs // QUERY_BLOCKS_PER_SPLIT,
        queries, queries, queries, queries, 64 * tokens,
    )  # fmt: skip


class _Replay(torch.autograd.Function):
    """Hidden states of a micro-batch; the gradients of the weights are added to their `grad`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: CapturedLayers, positions: Tensor, plan: BlockAttentionPlan) -> Tensor:
        layers.set_inputs(x, positions, plan)
        layers.forward.replay()
        ctx.layers = layers
        return layers.hidden.view_as(layers.hidden)

    @staticmethod
    def backward(ctx: Any, grad_hidden: Tensor) -> tuple[Any, ...]:
        layers: CapturedLayers = ctx.layers
        layers.grad_hidden.copy_(grad_hidden)
        layers.backward.replay()
        for weight, gradient in zip(layers.weights, layers.grad_weights, strict=True):
            # The learner takes it over before the next micro-batch; until then it may stay in the graph's memory.
            weight.grad = gradient if weight.grad is None else weight.grad + gradient
        return layers.grad_x, None, None, None


class LayerGraphs:
    """The graphs of one decoder's layers, by number of tokens."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        table = decoder.model.model.embed_tokens.weight
        self.weights = [weight for weight in decoder.parameters() if weight is not table and self._in_layers(weight)]
        self._pool: Any = None
        self._by_size: dict[int, CapturedLayers] = {}

    def _in_layers(self, weight: Tensor) -> bool:
        """Whether a weight belongs to the layers or the last norm, and not to the head."""
        return not any(weight is other for other in self.decoder.model.lm_head.parameters())

    def hidden(self, ids: Tensor, positions: Tensor, plan: BlockAttentionPlan) -> Tensor:
        """Final hidden states [N, E] of packed tokens."""
        tokens = len(ids)
        if any(len(value) > size for value, size in zip(plan.arrays(), list_sizes(tokens), strict=True)):
            return packed_hidden(self.decoder, ids, positions, plan)
        if tokens not in self._by_size:
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            with CAPTURING:
                self._by_size[tokens] = CapturedLayers(self.decoder, self.weights, tokens, self._pool)
        x = F.embedding(ids, self.decoder.model.model.embed_tokens.weight)
        if not x.requires_grad:
            x = x.detach().requires_grad_()
        result: Tensor = _Replay.apply(x, self._by_size[tokens], positions, plan)  # type: ignore[no-untyped-call]
        return result
