"""The size of a model and the floating-point operations that training and sampling need.

Model FLOPs utilisation (MFU) is `model FLOPs / (seconds × peak FLOP/s of all devices)`. Model FLOPs are those that the
algorithm needs: per computed token 2 per weight of the layers forward, 2 for the gradient of the input and 2 for that
of each trained weight; the LM head only at tokens that predict something. Tokens that several sequences share are
computed once and count once. Attention products, recomputation (gradient checkpointing) and padding do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelSize:
    """The sizes of a decoder that memory and time follow from."""

    layers: int
    hidden: int
    inner: int
    """Width of the MLP."""
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    """Whether the LM head is the embedding."""

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

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> ModelSize:
        """The sizes in a Hugging Face config.json."""
        heads = int(config["num_attention_heads"])
        return cls(
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            inner=int(config["intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_size=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
        )


def update_flops(size: ModelSize, tokens: float, predictions: float, adapter_weights: int = 0) -> float:
    """FLOPs of forward and backward over `tokens`, of which `predictions` go through the LM head.

    With `adapter_weights` only those of an adapter are trained, and the others need no gradient.
    """
    layers = size.layers * size.layer_weights
    if adapter_weights:
        return tokens * (4.0 * layers + 6.0 * adapter_weights) + 4.0 * predictions * size.head_weights
    return 6.0 * (tokens * layers + predictions * size.head_weights)


def forward_flops(size: ModelSize, tokens: float, predictions: float) -> float:
    """FLOPs of a forward pass."""
    return 2.0 * (tokens * size.layers * size.layer_weights + predictions * size.head_weights)


def attention_flops(size: ModelSize, tokens: float, mean_visible: float) -> float:
    """FLOPs of the products of a forward pass's queries with keys and of their weights with values."""
    return 4.0 * size.layers * size.heads * size.head_size * tokens * mean_visible


PEAK_BF16_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "B200": 2250e12, "L40S": 362e12}
"""Dense bfloat16 FLOP/s by the name of a GPU, as NVIDIA gives them."""


def peak_flops(device_name: str) -> float | None:
    """Peak of a GPU by its name; None where it is not known (a CPU too)."""
    return next((peak for name, peak in PEAK_BF16_FLOPS.items() if name in device_name.upper()), None)
