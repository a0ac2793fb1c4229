"""Shared by the legs: a size to measure at, a model of it, requests, and device timing."""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from practicum.chat.renderer import Renderer
from practicum.engines.base import Request, Sampling
from practicum.environment import Observation
from practicum.models import loader
from practicum.models.loader import LoadedModel
from practicum.task import Task

TASK = Task("b", "bench", "train")
Row = dict[str, Any]

SMOLLM2 = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "rope_theta": 100000.0,
}  # fmt: skip
SMALL = {
    "vocab_size": 4096, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """The sizes of a measurement. `tiny` only shows that a leg works: its figures mean nothing."""

    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    prompt: int = 200
    new: int = 128
    batches: tuple[int, ...] = (64, 256, 1024)
    contexts: tuple[int, ...] = (1024, 2048, 4096, 8000)
    """Prompt lengths, to measure what a longer context costs a decode step."""
    repeats: int = 3
    tasks: int = 32
    """Prompts of a GRPO step; each has 8 samples."""
    chains: int = 8
    episodes: int = 256
    learnt_tokens: int = 16384
    """Tokens of one update in the memory leg."""
    shape: dict[str, Any] = field(default_factory=lambda: dict(SMOLLM2))
    tiny: bool = False


TINY = Size(
    "cpu", torch.float32, 40, 8, (8,), (64, 128), 1, tasks=2, chains=2, episodes=8, learnt_tokens=256,
    shape=dict(SMALL), tiny=True,
)  # fmt: skip


def make_model(size: Size, dtype: torch.dtype | None = None) -> LlamaForCausalLM:
    """A model with random weights: their values do not change the time."""
    torch.manual_seed(0)
    with torch.device(size.device):
        return LlamaForCausalLM(LlamaConfig(**size.shape)).to(dtype or size.dtype).eval()


def make_wide_model(shape: dict[str, Any], size: Size) -> PreTrainedModel:
    """A model of any shape with random weights, never in float32: a large one would not fit twice."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(size.dtype)
    try:
        with torch.device(size.device):
            return AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape)).to(size.dtype).eval()
    finally:
        torch.set_default_dtype(before)


def load_real(size: Size) -> tuple[LoadedModel, str]:
    """SmolLM2 where its weights are available, else a random model of its shape; and which of the two it is."""
    if size.tiny:
        return loader.load("tiny"), "tiny"
    try:
        return loader.load("smollm2", size.dtype, size.device), "SmolLM2-135M"
    except Exception as error:
        print(f"(random weights: {str(error).splitlines()[0]})", flush=True)
        return LoadedModel(make_model(size), loader.load_tokenizer("tiny"), "random"), "random weights of its shape"


def make_renderer() -> Renderer:
    """A renderer of the tiny tokenizer without end ids."""
    renderer = Renderer(loader.load_tokenizer("tiny"))
    renderer.end_ids = ()
    return renderer


def make_requests(
    size: Size, count: int, chains: int, seed: int, mixed: bool, prompt: int = 0, new: int = 0
) -> list[Request]:
    """`chains` samples per prompt; `mixed`: prompts and replies of 0.1 to 1.9 times the length, the same on average."""
    rng = random.Random(seed)
    length, new, most = prompt or size.prompt, new or size.new, size.shape["vocab_size"] - 100
    requests: list[Request] = []
    while len(requests) < count:
        tokens = rng.randint(length // 10, length - length // 10 + length) if mixed else length
        ids = tuple(rng.randrange(10, most) for _ in range(tokens))
        for _ in range(chains):
            num_new = rng.randint(max(1, new // 16), 2 * new - max(1, new // 16)) if mixed else new
            requests.append(
                Request(ids, Sampling(1.0, max_tokens=num_new, seed=len(requests)), TASK, Observation(), ())
            )
    return requests[:count]


def synchronise(size: Size) -> None:
    if size.device == "cuda":
        torch.cuda.synchronize()


def forget_peak(size: Size) -> None:
    """Begin a measurement: free unused memory, reset the peak, restore PyTorch's default matmul settings for peers."""
    gc.collect()
    if size.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        loader.set_batch_invariant_matmul(False)  # PyTorch's default; engine and learner set it for themselves


def peak_bytes(size: Size) -> int:
    """The peak bytes of tensors on the device; 0 on CPU, where they are not counted."""
    return torch.cuda.max_memory_allocated() if size.device == "cuda" else 0


def gib(count: float) -> float:
    return count / 2**30
