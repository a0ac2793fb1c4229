"""A runner: what computes for the engine's scheduler on one kind of device.

`LocalEngine` decides which requests run; a runner computes their prompts and their next tokens over a `KVCache`. There
is one for a CPU (`CpuRunner`) and one for a CUDA GPU (`CudaRunner`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from practicum.engines.local.kv_cache import KVCache
from practicum.engines.local.request import RunningRequest
from practicum.models.decoder import Decoder
from practicum.models.multi_lora import MultiLoRA

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
