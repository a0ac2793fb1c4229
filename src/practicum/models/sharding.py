"""FSDP2: the weights of a model divided among learner ranks and gathered layer by layer while a pass needs them.

`torch.distributed.fsdp.fully_shard` works by hooks on calls of modules, and our forward pass is a function of a model's
weights, not a call of its modules. A sharded model and its layers therefore get a `forward` that calls the function
that it is given: `Decoder.run` and `Decoder.run_layer` call it, the hooks gather the weights before and free them after
it, and the backward pass sums the gradients over the ranks and leaves each rank its part.

What a rank holds of every weight, gradient and moment is its shard: a part of the rows [rows / ranks, ..], in float32.
Where the model computes in bfloat16 these are the master copies, and rounded ones are gathered.

A run of one process enters nothing of this module: see `Decoder.sharded`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class ShardedCompute:
    """Device and precision in which a sharded model computes; its shards may be elsewhere and are float32."""

    device: torch.device
    dtype: torch.dtype


def call_function(function: Callable[..., Any], *arguments: Any) -> Any:
    """The `forward` of a sharded module."""
    return function(*arguments)


def shard(model: Any, offload: bool = False) -> None:
    """Divide the weights of a Hugging Face model among all ranks, in place; `model.sharded` says how it computes.

    With `offload` the shards of a model on a GPU, their gradients and moments are in host memory; on a CPU they are
    there in any case.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    embedding: Tensor = model.model.embed_tokens.weight
    compute = ShardedCompute(embedding.device, embedding.dtype)
    mesh = init_device_mesh(compute.device.type, (dist.get_world_size(),))
    precision = MixedPrecisionPolicy(cast_forward_inputs=False)
    if compute.dtype != torch.float32:
        model.float()
        precision = MixedPrecisionPolicy(compute.dtype, torch.float32, cast_forward_inputs=False)
    policy = CPUOffloadPolicy() if offload and compute.device.type == "cuda" else OffloadPolicy()
    for module in (*model.model.layers, model):
        module.forward = call_function
        fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=policy)
        # Losses are divided by the denominator of the whole batch: gradients are summed, not averaged.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    model.sharded = compute


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank has only its shard of a tensor."""
    if not dist.is_available() or not dist.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local_shard(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor: all of it, where it is not sharded."""
    shard: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return shard


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor, gathered from all ranks: all of them have to call this."""
    gathered: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return gathered


@torch.no_grad()
def copy_to_shard(target: Tensor, source: Tensor) -> None:
    """Copy this rank's rows of a full tensor into its shard; a target that is not sharded gets all of them."""
    if not is_sharded(target):
        target.copy_(source)
        return
    shard = local_shard(target)
    start = min(dist.get_rank() * -(-source.shape[0] // dist.get_world_size()), source.shape[0])
    shard.copy_(source[start : start + shard.shape[0]])


def free_gathered(model: nn.Module) -> None:
    """Free the weights of a sharded model that the last pass has gathered, so that the next one gathers current ones.

    The outermost module keeps its weights (embedding, norm, LM head) between forward and backward pass.
    """
    model.reshard()  # type: ignore[operator]
