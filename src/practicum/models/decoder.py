"""One forward pass for the learner and the engine, over a Hugging Face model's own weights.

Both must give the same log-probs, so both run this code; only the attention differs (a mask over a
packed batch there, a KV cache here) and is passed in. Llama, Qwen2 and Qwen3 are covered; a test
holds it to Hugging Face's own forward.

Shapes: [N] tokens in any leading layout (rows × tokens in the learner, slots in the engine),
[H] heads, [K] key-value heads, [D] head size, [E] hidden size, [V] vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from practicum.errors import UserError

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [.., H, D], k [.., K, D], v [.., K, D]) -> [.., H·D]"""


@dataclass(frozen=True)
class Shape:
    """The sizes that a cache or a budget needs to know."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    vocabulary: int
    context: int


class Fused:
    """Several linear layers with one input, their weights laid side by side in one storage.

    The modules' own parameters become views of it: an optimizer that updates them in place has
    updated this too. Nothing is copied and nothing needs to be synchronised.
    """

    def __init__(self, linears: list[nn.Linear]) -> None:
        self.linears = linears
        self.sizes = [linear.out_features for linear in linears]
        self.weight = self._join([linear.weight for linear in linears])
        biases = [linear.bias for linear in linears if linear.bias is not None]
        self.bias = self._join(biases) if len(biases) == len(linears) else None
        self.plain = all(type(linear) is nn.Linear for linear in linears) and len(biases) in (0, len(linears))

    @staticmethod
    def _join(parameters: Sequence[Tensor]) -> Tensor:
        joined = torch.cat([parameter.data for parameter in parameters])
        start = 0
        for parameter in parameters:
            parameter.data = joined[start : start + parameter.shape[0]]
            start += parameter.shape[0]
        return joined

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        if torch.is_grad_enabled() or not self.plain:
            return tuple(linear(x) for linear in self.linears)
        return torch.split(F.linear(x, self.weight, self.bias), self.sizes, dim=-1)


class Decoder:
    """A causal language model as a function of ids, positions and an attention."""

    def __init__(self, model: PreTrainedModel) -> None:
        architecture = type(model).__name__
        if architecture not in ARCHITECTURES:
            raise UserError(
                f"Architecture {architecture} has no local decoder; use one of {', '.join(ARCHITECTURES)}, "
                "or serve the model elsewhere and use the openai engine."
            )
        config = model.config
        self.model = model
        self.layers = list(model.model.layers)
        self.epsilon: float = config.rms_norm_eps
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.shape = Shape(
            layers=len(self.layers),
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_size=head_size,
            hidden=config.hidden_size,
            vocabulary=config.vocab_size,
            context=config.max_position_embeddings,
        )
        self._qkv = [Fused([a.q_proj, a.k_proj, a.v_proj]) for a in (layer.self_attn for layer in self.layers)]
        self._gate_up = [Fused([layer.mlp.gate_proj, layer.mlp.up_proj]) for layer in self.layers]
        self._cos, self._sin = self._rotary_tables()

    @torch.no_grad()
    def _rotary_tables(self) -> tuple[Tensor, Tensor]:
        """cos and sin for every position [context, D], from the model's own rotary module (scaling included)."""
        positions = torch.arange(self.shape.context, device=self.device)[None]
        probe = torch.zeros(1, dtype=torch.float32, device=self.device)
        cos, sin = self.model.model.rotary_emb(probe, positions)
        return cos[0].to(self.dtype), sin[0].to(self.dtype)

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.model.embed_tokens.weight.device)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.model.embed_tokens.weight.dtype
        return dtype

    def parameters(self) -> Iterator[nn.Parameter]:
        return (parameter for parameter in self.model.parameters() if parameter.requires_grad)

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Final hidden states [.., E] of ids [..] at positions [..]."""
        shape = self.shape
        lead = ids.shape
        cos, sin = self._cos[positions][..., None, :], self._sin[positions][..., None, :]  # [.., 1, D]
        x = self.model.model.embed_tokens(ids)
        for number, layer in enumerate(self.layers):
            q, k, v = self._qkv[number](self._norm(x, layer.input_layernorm))
            q = q.view(*lead, shape.heads, shape.head_size)
            k = k.view(*lead, shape.kv_heads, shape.head_size)
            v = v.view(*lead, shape.kv_heads, shape.head_size)
            if hasattr(layer.self_attn, "q_norm"):  # Qwen3
                q, k = self._norm(q, layer.self_attn.q_norm), self._norm(k, layer.self_attn.k_norm)
            attended = attend(number, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
            x = x + layer.self_attn.o_proj(attended)
            gate, up = self._gate_up[number](self._norm(x, layer.post_attention_layernorm))
            x = x + layer.mlp.down_proj(F.silu(gate) * up)
        return self._norm(x, self.model.model.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [.., V] of hidden states [.., E]."""
        result: Tensor = self.model.lm_head(hidden)
        return result

    def _norm(self, x: Tensor, module: nn.Module) -> Tensor:
        weight = module.weight
        assert isinstance(weight, Tensor)
        if x.is_cuda:
            return F.rms_norm(x, (x.shape[-1],), weight, self.epsilon)
        wide = x.float()  # written out, because the fused operator is slower than this on CPU
        return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def token_logprobs(logits: Tensor, ids: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """THE log-prob of a sampled token: log-softmax of logits / temperature, in float32 [..].

    Learner and engine both call this, so "log-prob" means one thing in Practicum.
    """
    scaled = logits.float() / temperature
    return scaled.gather(-1, ids[..., None])[..., 0] - scaled.logsumexp(-1)
