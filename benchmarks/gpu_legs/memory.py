"""Memory: the calculated and the measured peak of an update of a 3 or 7 B model with LoRA."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch

from gpu_legs.common import SMALL, Row, Size, forget_peak, gib, make_wide_model, peak_bytes, synchronise
from practicum.models import loader, lora
from practicum.models.decoder import Decoder
from practicum.models.loader import LoadedModel
from practicum.training.learner import Learner, OptimizerSettings
from practicum.training.micro_batches import MicroBatchLimits, Sample
from practicum.training.objective import Objective

QWEN_7B = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768,
    "tie_word_embeddings": False, "rope_theta": 1e6,
}  # fmt: skip
QWEN_3B = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008,
    "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2, "max_position_embeddings": 32768,
    "tie_word_embeddings": True, "rope_theta": 1e6,
}  # fmt: skip
RANK, SEQUENCE = 16, 2048
LOGIT_CELLS = 1 << 27
"""Logits computed at once, about (see practicum/kernels/lm_head.py)."""


def calculated(shape: dict[str, Any], size: Size, tokens: int) -> dict[str, float]:
    """Bytes by purpose, with checkpointing: a layer's input is saved, its inside is computed again."""
    layers, hidden, inner = shape["num_hidden_layers"], shape["hidden_size"], shape["intermediate_size"]
    head = hidden // shape["num_attention_heads"]
    keys = shape["num_key_value_heads"] * head
    width, vocabulary = size.dtype.itemsize, shape["vocab_size"]
    attention = hidden * hidden * 2 + 2 * hidden * keys + hidden + 2 * keys
    layer = attention + 3 * hidden * inner + 2 * hidden
    embeddings = vocabulary * hidden * (1 if shape["tie_word_embeddings"] else 2)
    sizes = [(hidden, hidden), (hidden, keys), (hidden, keys), (hidden, hidden), (hidden, inner), (hidden, inner),
             (inner, hidden)]  # fmt: skip
    adapter = layers * sum(RANK * (a + b) for a, b in sizes)
    return {
        "weights": (layers * layer + embeddings + hidden) * width,
        "adapter: weights, master, two moments, gradient": adapter * (width + 4 + 8 + 4),
        # The residual stream in float32, and what is still to be added to it.
        "layer inputs kept": layers * tokens * hidden * (4 + width),
        # Forward's inside and the gradients of it: about nine tensors as wide as the model and five as the inner one.
        "inside of one layer": tokens * (9 * hidden + 2 * (hidden + 2 * keys) + 5 * inner + 14 * RANK) * width,
        "one piece of logits, and its gradient": (4 + width) * max(LOGIT_CELLS, vocabulary),
    }


def make_samples(tokens: int, vocabulary: int) -> list[Sample]:
    rng, samples = random.Random(0), []
    for start in range(0, tokens, SEQUENCE):
        length = min(SEQUENCE, tokens - start)
        ids = tuple(rng.randrange(10, vocabulary - 10) for _ in range(length))
        mask = np.arange(length) >= max(1, length // 4)
        ones = mask.astype(np.float32)
        samples.append(Sample(ids, mask, ones, ones * np.float32(rng.gauss(0, 1)), np.full(length, -11.9, np.float32)))
    return samples


def measure(name: str, shape: dict[str, Any], size: Size) -> Row:
    forget_peak(size)
    model = make_wide_model(shape, size)
    loaded = LoadedModel(model, loader.load_tokenizer("tiny"), "random")
    loaded = lora.add_adapter(loaded, lora.LoRASettings(RANK, 2 * RANK))
    for parameter in loaded.model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(size.dtype)
    decoder = Decoder(loaded.model)
    decoder.checkpointing = True
    learner = Learner(decoder, OptimizerSettings(), MicroBatchLimits(size.learnt_tokens))
    samples = make_samples(size.learnt_tokens, shape["vocab_size"])
    total = float(sum(int(sample.mask.sum()) for sample in samples))
    times = []
    for _ in range(2):
        synchronise(size)
        started = time.perf_counter()
        learner.update(samples, total, Objective(entropy_coeff=0.0, kl_loss_coef=0.0), 1e-5)
        synchronise(size)
        times.append(time.perf_counter() - started)
    parts = calculated(shape, size, size.learnt_tokens)
    trained, everything = lora.parameter_counts(loaded)
    return {
        "model": name, "parameters": everything, "trained": trained, "tokens": size.learnt_tokens,
        "tokens/s": size.learnt_tokens / times[-1], "calculated GiB": {key: gib(value) for key, value in parts.items()},
        "calculated GiB in all": gib(sum(parts.values())), "measured peak GiB": gib(peak_bytes(size)),
    }  # fmt: skip


def leg(size: Size) -> list[Row]:
    shapes = {"Qwen2.5-3B's shape": QWEN_3B, "Qwen2.5-7B's shape": QWEN_7B}
    if size.tiny:
        shapes = {"a small shape": {"model_type": "qwen2", **SMALL}}
    rows = []
    for name, shape in shapes.items():
        rows.append(measure(name, shape, size))
        row = rows[-1]
        print(
            f"{name}, {row['parameters'] / 1e9:.2f} B parameters in {str(size.dtype).removeprefix('torch.')}, LoRA of "
            f"rank {RANK} ({row['trained']:,} trained), one update of {row['tokens']:,} tokens: calculated "
            f"{row['calculated GiB in all']:.1f} GiB, measured {row['measured peak GiB']:.1f} GiB, "
            f"{row['tokens/s']:,.0f} tokens/s",
            flush=True,
        )
        for part, value in row["calculated GiB"].items():
            print(f"    {value:>7.2f} GiB {part}")
        if size.device == "cuda":
            torch.cuda.empty_cache()
    return rows
