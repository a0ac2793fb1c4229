"""One forward pass for the trainer and the engine, over a Hugging Face model's own weights.

Both must give the same log-probs, so both run this code; only the attention differs (over a packed batch in the
trainer, over a KV cache in the engine) and is passed in. Llama, Qwen2 and Qwen3 are covered; a test
compares it with Hugging Face's own forward.

Shapes: [N] tokens in any leading layout (rows × tokens in the trainer, rows in the engine),
[H] heads, [K] key-value heads, [D] head size, [E] hidden size, [V] vocabulary.

`Shape` has the sizes of a model; the FLOPs of a pass, which follow from them, are at the end.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from practicum.errors import UserError
from practicum.models.sharding import ShardedCompute

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [.., H, D], k [.., K, D], v [.., K, D]) -> [.., H·D]"""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, which memory and time follow from."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    inner: int = 0
    """Width of the MLP."""
    tied: bool = False
    """Whether the LM head is the embedding."""
    context: int = 0
    """Positions that the model has; 0: not known."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Shape:
        """The sizes in a Hugging Face config.json."""
        heads = int(config["num_attention_heads"])
        return cls(
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocabulary=int(config["vocab_size"]),
            inner=int(config["intermediate_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            context=int(config.get("max_position_embeddings") or 0),
        )

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def layer_weights(self) -> int:
        """Weights of one layer; biases are too few to count."""
        query = self.heads * self.head_size
        return self.hidden * (2 * query + 2 * self.kv_width + 3 * self.inner + 2)

    @property
    def head_weights(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def weights(self) -> int:
        return self.layers * self.layer_weights + self.head_weights * (1 if self.tied else 2) + self.hidden

    def lora_weights(self, rank: int) -> int:
        """Weights of an adapter over all linear layers."""
        query, kv, wide = self.heads * self.head_size, self.kv_width, self.hidden
        pairs = ((wide, query), (wide, kv), (wide, kv), (query, wide), (wide, self.inner), (wide, self.inner),
                 (self.inner, wide))  # fmt: skip
        return self.layers * rank * sum(a + b for a, b in pairs)


class AdapterSelection(threading.local):
    """Which adapters the rows of this thread's next pass use; neither a mask nor rows: the base model alone."""

    excluded: Mapping[str, Tensor] | None = None
    """For `MaskedAdapters`: the adapters of the pass, and the rows that do not use each of them [.., 1]."""
    rows: Sequence[tuple[str, Tensor | None, int]] = ()
    """For `RowAdapters`: each adapter, the indices of its rows, padded, and the number of its rows; None: all rows."""


class LowRankUpdate(NamedTuple):
    """What an adapter adds to one projection: its part of a `FusedLinear`'s output, and its matrices."""

    columns: slice
    down: Tensor  # [r, in]
    up: Tensor  # [columns, r]
    scale: float

    def output(self, x: Tensor) -> Tensor:
        """What is added to the projection of x, by PEFT's operations in their order: each one rounds to x's dtype."""
        return F.linear(F.linear(x, self.down), self.up) * self.scale


@dataclass(frozen=True)
class MaskedAdapters:
    """Low-rank matrices of several adapters for one `FusedLinear`, each computed for all rows and added to its own.

    Shapes do not depend on which rows use which adapter: for a captured graph. A row gets the bits of PEFT's layers.
    """

    updates: Mapping[str, Sequence[LowRankUpdate]]
    selection: AdapterSelection

    @property
    def in_use(self) -> bool:
        """Whether the next pass has an adapter that changes this layer."""
        return any(name in self.updates for name in self.selection.excluded or ())

    def add_to(self, output: Tensor, x: Tensor) -> Tensor:
        """The base layer's output with those of the selected adapters added."""
        for name, excluded in (self.selection.excluded or {}).items():
            for update in self.updates.get(name, ()):
                output[..., update.columns] += update.output(x).masked_fill_(excluded, 0)
        return output


@dataclass(frozen=True)
class RowAdapters:
    """Low-rank matrices of several adapters for one `FusedLinear`, each computed for its own rows only.

    A row gets the bits of PEFT's layers.
    """

    updates: Mapping[str, Sequence[LowRankUpdate]]
    selection: AdapterSelection

    @property
    def in_use(self) -> bool:
        """Whether the next pass has an adapter that changes this layer."""
        return any(name in self.updates for name, _, _ in self.selection.rows)

    def add_to(self, output: Tensor, x: Tensor) -> Tensor:
        """The base layer's output with those of the selected adapters added."""
        for name, rows, count in self.selection.rows:
            for update in self.updates.get(name, ()):
                if rows is None:
                    output[..., update.columns] += update.output(x)
                else:
                    output[rows[:count], ..., update.columns] += update.output(x[rows])[:count]
        return output


class FusedLinear:
    """Several linear layers with one input, their weights joined in one storage.

    The modules' own parameters become views of it: an optimizer that updates them in place has
    updated this too. Nothing is copied and nothing needs to be synchronised.
    """

    def __init__(self, linears: list[nn.Linear], join: bool = True) -> None:
        """With `join=False` the layers compute one by one: those of a sharded model have no lasting weights."""
        self.linears = linears
        self.sizes = [linear.out_features for linear in linears]
        biases = [linear.bias for linear in linears if linear.bias is not None]
        self.plain = join and all(type(linear) is nn.Linear for linear in linears) and len(biases) in (0, len(linears))
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        self.adapters: MaskedAdapters | RowAdapters | None = None
        """Adapters that single requests may use while decoding."""
        if self.plain:  # PEFT's and quantised layers compute in their own way
            self.weight = self._join([linear.weight for linear in linears])
            self.bias = self._join(biases) if biases else None

    @staticmethod
    def _join(parameters: Sequence[Tensor]) -> Tensor:
        if len(parameters) == 1:
            return parameters[0]
        if (existing := _joined_storage(parameters)) is not None:  # another decoder has joined them
            return existing
        joined = torch.cat([parameter.data for parameter in parameters])
        start = 0
        for parameter in parameters:
            parameter.data = joined[start : start + parameter.shape[0]]
            start += parameter.shape[0]
        return joined

    def joined(self, x: Tensor) -> Tensor | None:
        """All outputs in one product [.., out]; None where PEFT's or quantised layers compute in their own way."""
        if self.weight is None:
            return None
        if not torch.is_grad_enabled():
            output = F.linear(x, self.weight, self.bias)
            return output if self.adapters is None else self.adapters.add_to(output, x)
        if len(self.linears) == 1 or torch.is_autocast_enabled(x.device.type):
            return None
        weights = [linear.weight for linear in self.linears]
        biases = [linear.bias for linear in self.linears if linear.bias is not None]
        result: Tensor = _JoinedLinear.apply(x, self.weight, self.bias, self.sizes, *weights, *biases)  # type: ignore[no-untyped-call]
        return result

    def only(self, x: Tensor) -> Tensor:
        """The output of a single layer."""
        joined = self.joined(x)
        result: Tensor = self.linears[0](x) if joined is None else joined
        return result

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        joined = self.joined(x)
        if joined is None:
            return tuple(linear(x) for linear in self.linears)
        return torch.split(joined, self.sizes, dim=-1)


def _joined_storage(parameters: Sequence[Tensor]) -> Tensor | None:
    """The one tensor that these are consecutive parts of, if they are."""
    first = parameters[0]
    end = first.data_ptr()
    for parameter in parameters:
        if parameter.data_ptr() != end or not parameter.is_contiguous() or parameter.dtype != first.dtype:
            return None
        end += parameter.numel() * parameter.element_size()
    if (end - first.data_ptr()) // first.element_size() + first.storage_offset() > (
        first.untyped_storage().nbytes() // first.element_size()
    ):
        return None
    rows = sum(parameter.shape[0] for parameter in parameters)
    return first.data.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())


class _JoinedLinear(torch.autograd.Function):
    """x times joined weights, and the gradient of each: one product where there would be several."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, sizes: list[int], *parameters: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sizes, ctx.biased = sizes, bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        flat = gradient.flatten(0, -2)
        parts = torch.split(flat.t() @ x.flatten(0, -2), ctx.sizes)
        if ctx.biased:
            parts += torch.split(flat.sum(0), ctx.sizes)
        return gradient @ weight, None, None, None, *parts


class _SiluAndMul(torch.autograd.Function):
    """silu(gate) · up of both joined; saves nothing but its input."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor) -> Tensor:
        ctx.save_for_backward(joined)
        gate, up = joined.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (joined,) = ctx.saved_tensors
        gate, up = joined.chunk(2, dim=-1)
        result = torch.empty_like(joined)
        grad_gate, grad_up = result.chunk(2, dim=-1)
        torch.mul(gradient, F.silu(gate), out=grad_up)
        torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=grad_gate)
        return result


class Layer:
    """One layer's modules, looked up once: the model's own parameters, by reference.

    `adapted=False` takes the layers beneath a LoRA adapter instead of PEFT's.
    """

    def __init__(self, layer: Any, adapted: bool = True, join: bool = True) -> None:
        attention, mlp = layer.self_attn, layer.mlp

        def fused(*linears: Any) -> FusedLinear:
            own = [linear if adapted else getattr(linear, "base_layer", linear) for linear in linears]
            return FusedLinear(own, join)

        self.qkv = fused(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = fused(attention.o_proj)
        self.gate_up = fused(mlp.gate_proj, mlp.up_proj)
        self.down = fused(mlp.down_proj)
        self._norms = (layer.input_layernorm, layer.post_attention_layernorm)
        self._head_norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None  # Qwen3

    # Read at every use: a sharded module has other parameters while its weights are gathered.

    @property
    def before_attention(self) -> Tensor:
        weight: Tensor = self._norms[0].weight
        return weight

    @property
    def before_mlp(self) -> Tensor:
        weight: Tensor = self._norms[1].weight
        return weight

    @property
    def q_norm(self) -> Tensor | None:
        return None if self._head_norms is None else self._head_norms[0].weight

    @property
    def k_norm(self) -> Tensor | None:
        return None if self._head_norms is None else self._head_norms[1].weight


class Decoder:
    """A causal language model as a function of ids, positions and an attention."""

    def __init__(self, model: PreTrainedModel, adapted: bool = True) -> None:
        architecture = type(model).__name__.removeprefix("FSDP")  # `fully_shard` makes a class of its own
        if architecture not in ARCHITECTURES:
            raise UserError(
                f"Architecture {architecture} has no local decoder; use one of {', '.join(ARCHITECTURES)}, "
                "or serve the model elsewhere and use the openai engine."
            )
        config = model.config
        self.model = model
        self.adapted = adapted
        self.sharded: ShardedCompute | None = getattr(model, "sharded", None)
        """Device and precision in which a sharded model computes; None: the model is not sharded."""
        self.layers = [Layer(layer, adapted, join=self.sharded is None) for layer in model.model.layers]
        self.epsilon: float = config.rms_norm_eps
        self.shape = Shape.of_config(config.to_dict())
        self.autocast = False
        """Whether training passes compute in bfloat16 beside float32 weights."""
        self.dropout = False
        """Whether training passes apply an adapter's dropout."""
        self.checkpointing = False
        """Whether a training pass saves only layer inputs and computes the rest again for the gradient."""
        self._cos, self._sin = self.rotary_tables(self.dtype)

    @functools.cached_property
    def tables(self) -> tuple[Tensor, Tensor]:
        """cos and sin in float32, for kernels, which rotate in float32."""
        return self.rotary_tables(torch.float32)

    @torch.no_grad()
    def rotary_tables(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin for every position [context, D], from the model's own rotary module (scaling included).

        The first half of sin is negated: the rotation is then x·cos + swapped(x)·sin.
        """
        positions = torch.arange(self.shape.context, device=self.device)[None]
        probe = torch.zeros(1, dtype=torch.float32, device=self.device)
        cos, sin = self.model.model.rotary_emb(probe, positions)
        half = self.shape.head_size // 2
        signed = torch.cat((-sin[0][:, :half], sin[0][:, half:]), dim=-1)
        return cos[0].to(dtype), signed.to(dtype)

    @property
    def final_norm(self) -> Tensor:
        weight: Tensor = self.model.model.norm.weight
        return weight

    @property
    def device(self) -> torch.device:
        return torch.device((self.sharded or self.model.model.embed_tokens.weight).device)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = (self.sharded or self.model.model.embed_tokens.weight).dtype
        return dtype

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the whole model's weights; those of a sharded model are gathered for it."""
        return function(*arguments) if self.sharded is None else self.model(function, *arguments)

    def run_layer(self, index: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of one layer's weights; those of a sharded model are gathered for it."""
        return function(*arguments) if self.sharded is None else self.model.model.layers[index](function, *arguments)

    def parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for parameter in self.model.parameters() if parameter.requires_grad)

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend, keys_only: bool = False) -> Tensor:
        """Final hidden states [.., E] of ids [..] at positions [..].

        With `keys_only` the last layer ends once `attend` has seen its keys and values: a prompt that
        is only being cached needs no more.
        """
        hidden: Tensor = self.run(self._hidden, ids, positions, attend, keys_only)
        return hidden

    def _hidden(self, ids: Tensor, positions: Tensor, attend: Attend, keys_only: bool) -> Tensor:
        cos, sin = self._cos[positions][..., None, :], self._sin[positions][..., None, :]  # [.., 1, D]
        x = F.embedding(ids, self.model.model.embed_tokens.weight)
        for index, layer in enumerate(self.layers):
            if keys_only and index == self.shape.layers - 1:
                return self._attended(index, layer, x, cos, sin, attend)
            x = self.run_layer(index, self._checkpointed_layer, index, layer, x, cos, sin, attend)
        return self._norm(x, self.final_norm)

    def _attended(self, index: int, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        q, k, v = self._heads(layer, self._norm(x, layer.before_attention), cos, sin)
        return attend(index, q, k, v)

    def _checkpointed_layer(self, *arguments: Any) -> Tensor:
        """`_layer`, whose activations are computed again for the gradient where that was asked for."""
        if self.checkpointing and torch.is_grad_enabled():
            recomputed: Tensor = checkpoint(self._layer, *arguments, use_reentrant=False)
            return recomputed
        return self._layer(*arguments)

    def _layer(self, index: int, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = x + layer.out.only(self._attended(index, layer, x, cos, sin, attend))
        normed = self._norm(x, layer.before_mlp)
        joined = layer.gate_up.joined(normed)
        if joined is not None and torch.is_grad_enabled():
            activated: Tensor = _SiluAndMul.apply(joined)  # type: ignore[no-untyped-call]
        else:
            gate, up = layer.gate_up(normed) if joined is None else joined.chunk(2, dim=-1)
            activated = F.silu(gate) * up
        return x + layer.down.only(activated)

    def _heads(self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [.., H, D] and keys [.., K, D], and values [.., K, D]."""
        shape = self.shape
        joined = layer.qkv.joined(x)
        if joined is not None and layer.q_norm is None:  # queries and keys are rotated together
            heads = joined.view(*x.shape[:-1], shape.heads + 2 * shape.kv_heads, shape.head_size)
            rotated = _rotate(heads[..., : shape.heads + shape.kv_heads, :], cos, sin)
            return rotated[..., : shape.heads, :], rotated[..., shape.heads :, :], heads[..., -shape.kv_heads :, :]
        flat = layer.qkv(x) if joined is None else torch.split(joined, layer.qkv.sizes, dim=-1)
        q, k, v = (part.view(*x.shape[:-1], -1, shape.head_size) for part in flat)
        if layer.q_norm is not None and layer.k_norm is not None:  # Qwen3
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        return _rotate(q, cos, sin), _rotate(k, cos, sin), v

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [.., V] of hidden states [.., E]."""
        head = self.model.lm_head
        result: Tensor = (head if self.adapted else getattr(head, "base_layer", head))(hidden)
        return result

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.is_cuda or not torch.is_grad_enabled():
            return F.rms_norm(x, (x.shape[-1],), weight, self.epsilon)
        wide = x.float()  # written out: the fused operator's backward is slower than this on CPU
        return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def token_logprobs(logits: Tensor, ids: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """The log-prob of a sampled token: log-softmax of logits / temperature, in float32 [..].

    Trainer and engine both call this, so "log-prob" means one thing in Practicum.
    """
    scaled = logits.float()
    if not isinstance(temperature, float) or temperature != 1.0:
        scaled = scaled / temperature
    return scaled.gather(-1, ids[..., None])[..., 0] - scaled.logsumexp(-1)


# -- floating-point operations --------------------------------------------------------------
#
# Model FLOPs utilisation (MFU) is `model FLOPs / (seconds × peak FLOP/s of all devices)`. Model FLOPs are those that
# the algorithm needs: per computed token 2 per weight of the layers forward, 2 for the gradient of the input and 2 for
# that of each trained weight; the LM head only at tokens that predict something. Tokens that several sequences share
# are computed once and count once. Attention products, recomputation (gradient checkpointing) and padding do not count.


def update_flops(shape: Shape, tokens: float, predictions: float, adapter_weights: int = 0) -> float:
    """FLOPs of forward and backward over `tokens`, of which `predictions` go through the LM head.

    With `adapter_weights` only those of an adapter are trained, and the others need no gradient.
    """
    layers = shape.layers * shape.layer_weights
    if adapter_weights:
        return tokens * (4.0 * layers + 6.0 * adapter_weights) + 4.0 * predictions * shape.head_weights
    return 6.0 * (tokens * layers + predictions * shape.head_weights)


def forward_flops(shape: Shape, tokens: float, predictions: float) -> float:
    """FLOPs of a forward pass."""
    return 2.0 * (tokens * shape.layers * shape.layer_weights + predictions * shape.head_weights)


def attention_flops(shape: Shape, tokens: float, mean_visible: float) -> float:
    """FLOPs of the products of a forward pass's queries with keys and of their weights with values."""
    return 4.0 * shape.layers * shape.heads * shape.head_size * tokens * mean_visible


PEAK_BF16_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "B200": 2250e12, "L40S": 362e12}
"""Dense bfloat16 FLOP/s by the name of a GPU, as NVIDIA gives them."""


def peak_flops(device_name: str) -> float | None:
    """Peak of a GPU by its name; None where it is not known (a CPU too)."""
    return next((peak for name, peak in PEAK_BF16_FLOPS.items() if name in device_name.upper()), None)
