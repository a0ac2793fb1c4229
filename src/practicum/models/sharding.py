"""FSDP2: the weights of a model divided among learner ranks and gathered layer by layer while a pass needs them.

`torch.distributed.fsdp.fully_shard` works by hooks on calls of modules, and our forward pass is a function of a model's
weights, not a call of its modules. A sharded model and its layers therefore get a `forward` that calls the function
that it is given: `Decoder.run` and `Decoder.run_layer` call it, the hooks gather the weights before and free them after
it, and the backward pass sums the gradients over the ranks and leaves each rank its part.

What a rank holds of every weight, gradient and moment is its part of the rows [rows / ranks, ..], in float32; where the
model computes in bfloat16 these are the master copies, and rounded ones are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class ComputePlace:
    """Where a sharded model computes and in which precision; its parts may be elsewhere and are float32."""

    device: torch.device
    dtype: torch.dtype


def call_function(function: Callable[..., Any], *arguments: Any) -> Any:
    """The `forward` of a sharded module."""
    return function(*arguments)


def shard(model: Any, offload: bool = False) -> None:
    """Divide the weights of a Hugging Face model among all ranks, in place.

    With `offload` the parts of a model on a GPU, their gradients and moments are in host memory; on a CPU they are
    there in any case.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    embedding: Tensor = model.model.embed_tokens.weight
    place = ComputePlace(embedding.device, embedding.dtype)
    mesh = init_device_mesh(place.device.type, (dist.get_world_size(),))
    precision = MixedPrecisionPolicy(cast_forward_inputs=False)
    if place.dtype != torch.float32:
        model.float()
        precision = MixedPrecisionPolicy(place.dtype, torch.float32, cast_forward_inputs=False)
    policy = CPUOffloadPolicy() if offload and place.device.type == "cuda" else OffloadPolicy()
    for module in (*model.model.layers, model):
        module.forward = call_function
        fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=policy)
        # Losses are divided by the denominator of the whole batch: gradients are summed, not averaged.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    model.compute_place = place


def compute_place(model: nn.Module) -> ComputePlace | None:
    """Where a sharded model computes; None for a model that is not sharded."""
    place: ComputePlace | None = getattr(model, "compute_place", None)
    return place


def is_part(tensor: Tensor) -> bool:
    """Whether a tensor is this rank's part of a divided one."""
    if not dist.is_available() or not dist.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def own_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: all of it, where it is not divided."""
    part: Tensor = tensor.to_local() if is_part(tensor) else tensor  # type: ignore[attr-defined]
    return part


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered from all ranks: all of them have to call this."""
    gathered: Tensor = tensor.full_tensor() if is_part(tensor) else tensor  # type: ignore[attr-defined]
    return gathered


@torch.no_grad()
def copy_part(target: Tensor, source: Tensor) -> None:
    """Copy this rank's part of a whole tensor into a divided one; a target that is not divided gets all of it."""
    if not is_part(target):
        target.copy_(source)
        return
    part = own_part(target)
    start = min(dist.get_rank() * -(-source.shape[0] // dist.get_world_size()), source.shape[0])
    part.copy_(source[start : start + part.shape[0]])


def free_gathered(models: Iterable[nn.Module]) -> None:
    """Free the weights that the last passes have gathered, so that the next ones gather those of now.

    The outermost module keeps its weights (embedding, norm, LM head) between forward and backward pass.
    """
    for model in models:
        if compute_place(model) is not None:
            model.reshard()  # type: ignore[operator]
