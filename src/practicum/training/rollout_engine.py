"""The engine that the replies of a policy come from: the one in this process, or vLLM servers.

With several ranks every rank has an engine of its own. A vLLM server with `tensor_model_parallel_size` k has the GPUs
of k ranks of a machine; the first of them starts it and runs the episodes of all k.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from practicum.chat.renderer import Renderer
from practicum.config.resolve import read_launch
from practicum.config.train import TrainConfig
from practicum.engines.base import Generation, PolicyEngine, Request, Weights
from practicum.engines.vllm.engine import VLLMEngine, VLLMSettings
from practicum.engines.vllm.server import ServerSettings
from practicum.errors import EngineError
from practicum.models import loader
from practicum.models.loader import Device
from practicum.training import ranks
from practicum.training.settings import max_num_seqs, resolve_policy


class EngineOfAnotherRank:
    """Stands where this rank has no engine: its episodes are run by the first rank of those that share a server."""

    name = "vllm"

    async def generate(self, request: Request) -> Generation:
        raise EngineError("this rank has no engine; another one runs its episodes")

    async def update_weights(self, version: int, weights: Weights) -> None:
        return None

    def end_session(self, session: str) -> None:
        return None

    async def close(self) -> None:
        return None


def ranks_per_engine(config: TrainConfig) -> int:
    """How many ranks share an engine."""
    rollout = config.actor_rollout_ref.rollout
    return rollout.tensor_model_parallel_size if rollout.name == "vllm" and ranks.num_ranks() > 1 else 1


def engine_maker(
    config: TrainConfig, folder: Path, on: Device | None = None
) -> Callable[[Renderer], PolicyEngine] | None:
    """A function that makes the engine which the configuration names; None: the engine in this process.

    All ranks have to call this.
    """
    rollout, on = config.actor_rollout_ref.rollout, on or Device()
    if rollout.name == "local":
        return None
    shared_by, rank = ranks_per_engine(config), ranks.own_rank()
    gpus = ranks.gather_json(os.environ.get("CUDA_VISIBLE_DEVICES", "")) if on.on_gpu and shared_by > 1 else []
    if rank % shared_by:
        return lambda renderer: EngineOfAnotherRank()
    vllm, server_folder = rollout.vllm, folder / ("vllm" if rank == 0 else f"vllm-rank-{rank}")
    num_seqs = max_num_seqs(config, on)
    server = ServerSettings(
        folder=server_folder,
        python=vllm.python,
        port=vllm.port and vllm.port + read_launch().local_rank,
        dtype=vllm.dtype,
        max_model_len=vllm.max_model_len,
        max_num_seqs=num_seqs,
        tensor_model_parallel_size=rollout.tensor_model_parallel_size,
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        extra_args=tuple(vllm.extra_args),
        start_timeout=vllm.start_timeout,
        gpus=",".join(gpus[rank : rank + shared_by]) or None,
    )
    settings = VLLMSettings(
        base=loader.model_folder(resolve_policy(config).model),
        folder=server_folder,
        url=vllm.url,
        server=None if vllm.url else server,
        max_num_seqs=num_seqs,
        canary_limit=vllm.canary_limit,
    )
    return functools.partial(VLLMEngine, settings=settings)
