"""Learner ranks: processes that train one model together, started by `torchrun` or `accelerate launch`.

Every rank has all weights and the optimizer's moments. The samples of an update are divided among the ranks and their
gradients are summed; since every loss has a denominator that was counted over the whole batch, the sum is the gradient
of one process up to rounding, and all ranks take the same step. Episodes are divided by group, and every rank gets the
records of all of them, so advantages, metrics and curriculum are computed from the same data everywhere. In a process
without a launcher everything here does nothing.

Messages are JSON and safetensors; nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn

from practicum.config.resolve import Launch, read_launch
from practicum.errors import UserError, describe_exception

Item = TypeVar("Item")

GROUP_TIMEOUT = timedelta(hours=4)
"""How long a rank waits for the others. A rank that ends is noticed at once; this bounds waiting for a slow one."""
MAX_BUCKET_ELEMENTS = 2**24
"""Gradients are summed in pieces of about this many elements, so that their copy stays small."""


class RanksLost(UserError):
    """Other ranks have ended or cannot be reached; their own output has the cause."""


def num_ranks() -> int:
    """Return the number of ranks that have joined; 1 without a launcher."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def own_rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if num_ranks() > 1 else 0


@contextlib.contextmanager
def joined(device: str) -> Iterator[Launch]:
    """Join the other ranks of this launch for the block; without a launcher there is nobody to join."""
    launch = read_launch()
    if launch.num_ranks == 1 or num_ranks() > 1:
        yield launch
        return
    on_gpu = device != "cpu"
    if not on_gpu and torch.get_num_threads() > 1:  # ranks of one machine share its cores
        torch.set_num_threads(max(1, torch.get_num_threads() // launch.ranks_per_node))
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=GROUP_TIMEOUT)
    except (ValueError, RuntimeError) as error:
        raise RanksLost(f"Rank {launch.rank} cannot join the others ({error}); start all with torchrun.") from error
    try:
        _check_devices(on_gpu)
        yield launch
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        reason = str(error).splitlines()[0][:200]
        raise RanksLost(f"Rank {launch.rank} has lost the other ranks; see what they say ({reason}).") from error
    finally:
        dist.destroy_process_group()


def is_lost_connection(error: RuntimeError) -> bool:
    """Whether an error is that of messages to other ranks: gloo raises plain RuntimeErrors."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in ("onnection", "gloo", "NCCL"))


def _check_devices(on_gpu: bool) -> None:
    """Refuse ranks on different kinds of device, and two ranks on one GPU."""
    own = str(torch.cuda.get_device_properties(0).uuid) if on_gpu else "cpu"
    devices = [f"{host} {device}" for host, device in gather_json([socket.gethostname(), own])]
    kinds = {name.endswith(" cpu") for name in devices}
    if len(kinds) > 1:
        raise UserError("Some ranks have a GPU and others have none; start as many per machine as it has GPUs.")
    if on_gpu and len(set(devices)) < len(devices):
        raise UserError("Two ranks have the same GPU; start as many per machine as it has GPUs.")


# -- messages -------------------------------------------------------------------------------


def gather_bytes(data: bytes) -> list[bytes]:
    """Return the data of every rank, in their order, on every rank."""
    if num_ranks() == 1:
        return [data]
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(num_ranks())]
    dist.all_gather(sizes, torch.tensor([len(data)]))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    if data:
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    buffers = [torch.empty_like(padded) for _ in range(num_ranks())]
    dist.all_gather(buffers, padded)
    return [buffer[: int(size)].numpy().tobytes() for buffer, size in zip(buffers, sizes, strict=True)]


def gather_json(value: Any) -> list[Any]:
    """Return the JSON value of every rank, in their order, on every rank."""
    return [json.loads(data) for data in gather_bytes(json.dumps(value).encode())]


def broadcast_json(value: Any = None) -> Any:
    """Return rank 0's JSON value on every rank."""
    if num_ranks() == 1:
        return value
    data = json.dumps(value).encode() if own_rank() == 0 else b""
    size = torch.tensor([len(data)])
    dist.broadcast(size, 0)
    buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(buffer, 0)
    return json.loads(buffer.numpy().tobytes())


def broadcast_tensors(tensors: Mapping[str, Tensor], device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Yield rank 0's tensors by name, one after the other, on every rank; what other ranks pass is not read."""
    header = [[name, str(value.dtype).removeprefix("torch."), list(value.shape)] for name, value in tensors.items()]
    for name, dtype, shape in broadcast_json(header):
        if own_rank() == 0:
            value = tensors[name].detach().to(device).contiguous()
        else:
            value = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        if value.numel():
            dist.broadcast(value.view(-1).view(torch.uint8), 0)
        yield name, value


# -- work that is divided -------------------------------------------------------------------


def own_part(items: Sequence[Item], size: Callable[[Item], int]) -> Sequence[Item]:
    """Return this rank's part of the items: a contiguous one, so that samples with a common prefix stay together."""
    start, end = part_bounds([size(item) for item in items], num_ranks())[own_rank()]
    return items if num_ranks() == 1 else items[start:end]


def part_bounds(sizes: Sequence[int], num_parts: int) -> list[tuple[int, int]]:
    """Return start and end of contiguous parts of about the same total size; an item goes where its middle lies."""
    total, done, part = sum(sizes), 0.0, 0
    starts = [0]
    for position, size in enumerate(sizes):
        part = min(num_parts - 1, int((done + size / 2) * num_parts / total)) if total else 0
        starts += [position] * (part + 1 - len(starts))
        done += size
    starts += [len(sizes)] * (num_parts - len(starts))
    return list(zip(starts, [*starts[1:], len(sizes)], strict=True))


def own_positions(groups: Sequence[str], ranks_per_engine: int = 1) -> list[int]:
    """Return the positions of this rank's items; items of one group are on one rank, and groups go round.

    Where ranks share an engine, only the first of them has items.
    """
    rank_of: dict[str, int] = {}
    num_engines = max(1, num_ranks() // ranks_per_engine)
    for group in groups:
        rank_of.setdefault(group, len(rank_of) % num_engines * ranks_per_engine)
    return [position for position, group in enumerate(groups) if rank_of[group] == own_rank()]


def any_rank(value: bool) -> bool:
    """Return whether the value is true on some rank."""
    if num_ranks() == 1:
        return value
    flag = torch.tensor([int(value)])
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def gather_tensors(own: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors [..] of all ranks, those of rank 0 first, on every rank."""
    if num_ranks() == 1:
        return list(own)
    data = safetensors.torch.save({str(index): value.contiguous() for index, value in enumerate(own)})
    loaded = [safetensors.torch.load(part) for part in gather_bytes(data)]
    return [tensors[str(index)] for tensors in loaded for index in range(len(tensors))]


def sum_floats(values: Iterable[float]) -> list[float]:
    """Return the sums of numbers over the ranks, in the order of the ranks."""
    if num_ranks() == 1:
        return list(values)
    return [sum(column) for column in zip(*gather_json(list(values)), strict=True)]


@contextlib.contextmanager
def shared_failure() -> Iterator[None]:
    """Raise on every rank where the block fails on one: the others would wait for it."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    if num_ranks() > 1:
        failures = gather_json(None if failure is None else describe_exception(failure))
        if failure is None:
            for rank, text in enumerate(failures):
                if text is not None:
                    raise UserError(f"Rank {rank} failed: {text}")
    if failure is not None:
        raise failure


@torch.no_grad()
def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Sum the gradients over all ranks in place; one that no rank has stays None."""
    if num_ranks() == 1 or not parameters:
        return
    has_gradient = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    dist.all_reduce(has_gradient, dist.ReduceOp.MAX)
    trained = [parameter for parameter, has in zip(parameters, has_gradient.tolist(), strict=True) if has]
    for bucket in _buckets(trained):
        flat = torch.cat([
            (torch.zeros_like(item) if item.grad is None else item.grad).flatten() for item in bucket
        ])  # fmt: skip
        dist.all_reduce(flat)
        for item, part in zip(bucket, torch.split(flat, [item.numel() for item in bucket]), strict=True):
            if item.grad is None:
                item.grad = part.view_as(item).clone()
            else:
                item.grad.copy_(part.view_as(item))


def sum_tensor(own: Tensor | None, like: Sequence[nn.Parameter]) -> Tensor | None:
    """Return the sum of flat float32 gradients over all ranks; None counts as zero, and stays None if all have it."""
    if num_ranks() == 1 or not any(gather_json(own is not None)):
        return own
    device = like[0].device
    result = own if own is not None else torch.zeros(sum(parameter.numel() for parameter in like), device=device)
    dist.all_reduce(result)
    return result


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(item.numel() for item in bucket) + parameter.numel() > MAX_BUCKET_ELEMENTS:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


def check_same_weights(parameters: Iterable[Tensor]) -> None:
    """Raise unless all ranks have the same weights to the bit."""
    if num_ranks() == 1:
        return
    integers = {4: torch.int32, 2: torch.int16}
    sums = []
    for parameter in parameters:
        bits = parameter.detach().contiguous().view(-1).view(integers.get(parameter.element_size(), torch.uint8))
        sums.append(int(bits.sum(dtype=torch.int64)))
    first, *others = gather_json(sums)
    different = [rank for rank, other in enumerate(others, 1) if other != first]
    if different:
        raise UserError(
            f"The weights of rank {different[0]} are not those of rank 0; is the model's folder the same on all "
            "machines? Nothing was saved."
        )
