"""The learner's layers as CUDA graphs: captured once for each size of a piece, then replayed.

A pass over a small model's layers is about a thousand launches, and the host is slower at them than the GPU. Pieces
are padded to round sizes; every size is captured when it is first met. What a size keeps between
its forward and its backward replay lies in one pool that all sizes share: they never run at the same time.
A piece of very many short runs has longer lists than a graph has room for, and goes without.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.kernels import CAPTURING
from practicum.kernels.packed_forward import packed_hidden, through_layers
from practicum.models.decoder import Decoder
from practicum.models.prefix_tree import BLOCK_TOKENS, QUERY_BLOCKS_PER_SPLIT, BlockAttentionPlan


class Layers:
    """All layers over N tokens: forward and backward, each one graph."""

    def __init__(self, decoder: Decoder, weights: list[torch.nn.Parameter], tokens: int, pool: Any) -> None:
        device, shape = decoder.device, decoder.shape
        self.weights = weights
        self.x = torch.zeros(tokens, shape.hidden, dtype=torch.float32, device=device, requires_grad=True)
        self.positions = torch.zeros(tokens, dtype=torch.int64, device=device)
        self.plan = BlockAttentionPlan(*(torch.zeros(size, dtype=torch.int32, device=device) for size in room(tokens)))
        self.asked = torch.zeros(tokens, shape.hidden, dtype=decoder.dtype, device=device)
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # kernels are built and libraries have their workspaces before a capture
            self._backward(through_layers(decoder, self.x, self.positions, self.plan))
        torch.cuda.current_stream().wait_stream(side)
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward, pool=pool, capture_error_mode="thread_local"):
            hidden = through_layers(decoder, self.x, self.positions, self.plan)
        with torch.cuda.graph(self.backward, pool=pool, capture_error_mode="thread_local"):
            self.by_x, *self.by_weights = self._backward(hidden)
        self.hidden = hidden.detach()

    def _backward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(hidden, [self.x, *self.weights], self.asked)

    def set(self, x: Tensor, positions: Tensor, plan: BlockAttentionPlan) -> None:
        with torch.no_grad():
            self.x.copy_(x)
        self.positions.copy_(positions)
        self.plan.split_key_blocks.fill_(-1)
        self.plan.num_queries.zero_()
        for place, value in zip(self.plan.arrays(), plan.arrays(), strict=True):
            place[: len(value)].copy_(value)


def room(tokens: int) -> tuple[int, ...]:
    """How much of each of a `Spans`' lists a graph over so many tokens has room for; runs may be short."""
    blocks = -(-tokens // BLOCK_TOKENS)
    most = blocks * (blocks + 1) // 2
    queries = 3 * blocks
    return (
        tokens, blocks + 1, most, blocks + 1, most, blocks + 1, blocks + most // QUERY_BLOCKS_PER_SPLIT,
        queries, queries, queries, queries, 64 * tokens,
    )  # fmt: skip


class _Replayed(torch.autograd.Function):
    """Hidden states of a piece; the weights' gradients go to where the weights keep theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: Layers, positions: Tensor, plan: BlockAttentionPlan) -> Tensor:
        layers.set(x, positions, plan)
        layers.forward.replay()
        ctx.layers = layers
        return layers.hidden.view_as(layers.hidden)

    @staticmethod
    def backward(ctx: Any, asked: Tensor) -> tuple[Any, ...]:
        layers: Layers = ctx.layers
        layers.asked.copy_(asked)
        layers.backward.replay()
        for weight, gradient in zip(layers.weights, layers.by_weights, strict=True):
            # Whoever owns the weights takes it over before the next piece; until then it may lie where it is.
            weight.grad = gradient if weight.grad is None else weight.grad + gradient
        return layers.by_x, None, None, None


class Replays:
    """The sizes captured so far, of one decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        table = decoder.model.model.embed_tokens.weight
        self.weights = [weight for weight in decoder.parameters() if weight is not table and self._within(weight)]
        self._pool: Any = None
        self._sizes: dict[int, Layers] = {}

    def _within(self, weight: Tensor) -> bool:
        """Whether a weight belongs to the layers or the last norm, and not to the head."""
        return not any(weight is other for other in self.decoder.model.lm_head.parameters())

    def hidden(self, ids: Tensor, positions: Tensor, plan: BlockAttentionPlan) -> Tensor:
        tokens = len(ids)
        if any(len(value) > size for value, size in zip(plan.arrays(), room(tokens), strict=True)):
            return packed_hidden(self.decoder, ids, positions, plan)
        if tokens not in self._sizes:
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            with CAPTURING:
                self._sizes[tokens] = Layers(self.decoder, self.weights, tokens, self._pool)
        x = F.embedding(ids, self.decoder.model.model.embed_tokens.weight)
        if not x.requires_grad:
            x = x.detach().requires_grad_()
        result: Tensor = _Replayed.apply(x, self._sizes[tokens], positions, plan)  # type: ignore[no-untyped-call]
        return result
