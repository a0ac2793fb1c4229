"""A runner: what computes for the engine's scheduler on one kind of device.

`LocalEngine` decides which requests run; a runner computes their prompts and their next tokens over a `KVCache`. There
is one for a CPU (`CpuRunner`) and one for a CUDA GPU (`CudaRunner`). `SlotState` is what both keep per slot besides
keys and values: the next token's input and how to sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.engines.local.kv_cache import KVCache
from practicum.engines.local.request import RunningRequest
from practicum.models.decoder import Decoder
from practicum.models.multi_lora import MultiLoRA


class SlotState:
    """Tensors indexed by slot of the KV cache, on the decoder's device; a captured CUDA graph reads them in place."""

    def __init__(self, num_slots: int, noise_length: int, device: torch.device) -> None:
        self.last_id = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """The id that the next step feeds."""
        self.position = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.temperature = torch.ones(num_slots, device=device)
        self.top_k = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.top_p = torch.ones(num_slots, device=device)
        self.step = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """Tokens sampled so far: the column of `noise` that the next one uses."""
        self.noise = torch.zeros(num_slots, noise_length, device=device)
        """Uniform random numbers [slots, tokens], drawn from each request's own seed."""
        self.adapter_mask = torch.zeros(num_slots, 0, device=device)
        """Which columns of the adapters' matrices a request uses [slots, columns] (`MultiLoRA.columns`)."""

    def tensors(self) -> tuple[Tensor, ...]:
        return (
            self.last_id, self.position, self.temperature, self.top_k, self.top_p, self.step, self.noise,
            self.adapter_mask,
        )  # fmt: skip

    def reserve_noise(self, num_tokens: int) -> None:
        """Make room for this many random numbers per slot."""
        if num_tokens > self.noise.shape[1]:
            self.noise = F.pad(self.noise, (0, num_tokens - self.noise.shape[1]))

    def copy(self, source: int, target: int) -> None:
        for tensor in self.tensors():
            tensor[target] = tensor[source]

    def swap(self, first: int, second: int) -> None:
        for tensor in self.tensors():
            tensor[[first, second]] = tensor[[second, first]]


BATCH_MULTIPLE = 8
"""Rows of a batch are padded to a multiple of this."""


@dataclass(frozen=True)
class RunnerSettings:
    """Sizes that the engine's caller may choose."""

    steps_per_decode: int
    """Decode steps per call of `Runner.decode`."""
    prefill_tokens: int
    """Prompt tokens computed at once, at most."""
    decode_threads: int
    prefill_threads: int


DecodedTokens = list[tuple[RunningRequest, list[int], list[float], bool]]
"""Per request its new ids, their log-probs, and whether an end id may be among them."""


@dataclass(frozen=True)
class DecodeOutput:
    """What a call of `decode` gave. An asynchronous runner gives the tokens of an earlier call, or none yet."""

    num_steps: int
    """Steps that this call started."""
    tokens: DecodedTokens


class Runner(Protocol):
    """Prefill and decode over a KV cache. All methods are called from the engine's thread."""

    asynchronous: bool
    """Whether `decode` returns before its tokens are there: it pays to start with as many requests as are coming in."""
    keeps_slots: bool
    """Whether a finished request's keys and values stay in its slot, rather than being copied out."""
    admission_interval: int
    """Decode steps between two admissions: prompts are computed more cheaply together, and a reply is many steps."""

    def stream(self) -> AbstractContextManager[None]:
        """A context around all calls; when it ends, no work that needs the buffers is under way."""

    def synchronize(self) -> None:
        """Wait for weights or adapters that other threads have written."""

    def set_adapters(self, adapters: MultiLoRA, running: Sequence[RunningRequest]) -> None:
        """Use these adapters from here on; called again after every change of them."""

    def grow(self, num_tokens: int) -> None:
        """Make room for requests of this many tokens, prompt and reply."""

    def set_sampling_params(self, wave: Sequence[RunningRequest]) -> None:
        """Store the sampling parameters and first inputs of requests whose slots have just been allocated."""

    def prefill(self, wave: Sequence[RunningRequest]) -> None:
        """Compute keys and values of prompts behind what is cached, except for each prompt's last token."""

    def decode(self, running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
        """Sample the next tokens of the running requests; may reorder `running`, and then sets each `index`."""

    def release(self, request: RunningRequest, last: RunningRequest) -> None:
        """Free the slot of a request that has left the batch, whose index `last` has taken (itself, if it was last)."""


RunnerFactory = Callable[[Decoder, KVCache, RunnerSettings], Runner]


def runner_for(device: torch.device) -> RunnerFactory:
    """The runner for a device."""
    if device.type == "cuda":
        from practicum.engines.local.cuda_runner import CudaRunner  # needs Triton

        return CudaRunner
    from practicum.engines.local.cpu_runner import CpuRunner

    return CpuRunner


def any_filtered(running: Sequence[RunningRequest]) -> bool:
    """Whether any request samples among its most likely tokens only (top-k, top-p)."""
    return any(one.request.sampling.top_k or one.request.sampling.top_p < 1 for one in running)


def any_adapter(running: Sequence[RunningRequest]) -> bool:
    """Whether any request is answered by an adapter."""
    return any(one.request.adapter for one in running)
