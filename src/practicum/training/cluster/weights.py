"""Trained weights as a message from the learner to rollout workers: versioned, with a checksum per tensor.

A message is a safetensors buffer. It holds whole tensors, or only the elements of a tensor that have changed since the
version that the message names as its base. Whoever receives it checks everything before the first weight is changed:
the base, names, shapes, dtypes, and the SHA-256 of every tensor as it will be.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

MAX_DELTA_SHARE = 0.5
"""Changed elements are sent instead of a whole tensor where they take less than this share of its bytes."""
POSITIONS, VALUES = "@positions", "@values"
"""Endings of the names of the two parts of a tensor of which only changed elements are sent."""
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""The dtypes of a safetensors buffer by their names in its header."""


class WeightsRefused(Exception):
    """A message that is damaged, for another model, or for another version than the receiver has."""


@dataclass(frozen=True)
class TensorRecord:
    """What a message says about one tensor: its SHA-256 after the update, and whether only changes are sent."""

    sha256: str
    is_delta: bool


def checksum(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).hexdigest()


def encode(tensors: Mapping[str, Tensor], version: int, base: tuple[int, Mapping[str, Tensor]] | None = None) -> bytes:
    """Return a message with tensors of a version; with `base` (a version and its tensors), changes where they pay."""
    parts: dict[str, Tensor] = {}
    records: dict[str, Any] = {}
    for name, tensor in tensors.items():
        value = tensor.detach().to("cpu").contiguous()
        delta = None if base is None else _changes(base[1][name], value)
        parts |= {name: value} if delta is None else {name + POSITIONS: delta[0], name + VALUES: delta[1]}
        records[name] = [checksum(value), delta is not None]
    is_delta = any(record[1] for record in records.values())
    metadata = {
        "version": str(version),
        "base": str(base[0]) if is_delta and base is not None else "",
        "tensors": json.dumps(records),
    }
    metadata["sha256"] = _header_checksum(metadata)
    return safetensors.torch.save(parts, metadata)


def _changes(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return positions and values of the elements that differ to the bit; None where the whole tensor is smaller."""
    integers = {2: torch.int16, 4: torch.int32}.get(after.element_size())
    if integers is None or after.dim() == 0:
        return None
    flat = after.view(-1)
    changed = torch.nonzero(flat.view(integers) != before.view(-1).view(integers)).view(-1)
    positions = changed.to(torch.int32) if flat.numel() < 2**31 else changed
    size = len(changed) * (positions.element_size() + after.element_size())
    if size >= MAX_DELTA_SHARE * flat.numel() * after.element_size():
        return None
    return positions, flat[changed]


@torch.no_grad()
def apply(message: bytes | memoryview, targets: Mapping[str, Tensor], current: int | None) -> int:
    """Copy a message's weights into tensors in place; returns their version.

    `current` is the version that the tensors have, None for none. Raises WeightsRefused, with no tensor changed, unless
    the message is newer than that and every tensor will be what the sender has.
    """
    header, tensor_bytes = _read_header(message)
    metadata = header["__metadata__"]
    if current is not None and int(metadata["version"]) <= current:
        raise WeightsRefused(f"the message has version {metadata['version']}, and the weights here are {current}")
    try:
        parts = _views(header, tensor_bytes)
        records = {name: TensorRecord(*record) for name, record in json.loads(metadata["tensors"]).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsRefused(f"the message is damaged ({error})") from error
    if metadata["base"] and metadata["base"] != str(current):
        raise WeightsRefused(f"the changes are on version {metadata['base']}, and the weights here are {current}")
    if set(records) != set(targets):
        differing = sorted(set(records) ^ set(targets))
        raise WeightsRefused(f"the message is for another model ({len(differing)} tensors differ: {differing[0]}, ...)")
    updated = {name: _updated(name, record, parts, targets[name]) for name, record in records.items()}
    for name, value in updated.items():
        targets[name].copy_(value)
    return int(metadata["version"])


def _updated(name: str, record: TensorRecord, parts: Mapping[str, Tensor], target: Tensor) -> Tensor:
    """Return a tensor as it will be, checked."""
    try:
        if record.is_delta:
            value = target.detach().to("cpu", copy=True).contiguous()
            value.view(-1)[parts[name + POSITIONS].long()] = parts[name + VALUES]
        else:
            value = parts[name]
    except (KeyError, IndexError, RuntimeError) as error:
        raise WeightsRefused(f"'{name}' is missing or damaged ({error})") from error
    if value.shape != target.shape or value.dtype != target.dtype:
        raise WeightsRefused(f"'{name}' is {value.dtype} {list(value.shape)}, here {target.dtype} {list(target.shape)}")
    if checksum(value) != record.sha256:
        raise WeightsRefused(f"'{name}' does not have the checksum that the sender gave")
    return value


def _read_header(message: bytes | memoryview) -> tuple[dict[str, Any], memoryview]:
    """Return the header of a safetensors buffer, whose metadata are whole, and the bytes of its tensors."""
    try:
        view = memoryview(message)
        length = int.from_bytes(view[:8], "little")
        header: dict[str, Any] = json.loads(bytes(view[8 : 8 + length]))
        metadata = header["__metadata__"]
        int(metadata["version"])
        is_whole = _header_checksum(metadata) == metadata["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsRefused(f"the message has no readable header ({error})") from error
    if not is_whole:
        raise WeightsRefused("the header does not have the checksum that the sender gave")
    return header, view[8 + length :]


def _views(header: Mapping[str, Any], tensor_bytes: memoryview) -> dict[str, Tensor]:
    """Return the tensors of a safetensors buffer as views of it, which `safetensors` itself would copy twice.

    ValueError or KeyError where they are not exactly what the header says.
    """
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    if max((entry["data_offsets"][1] for entry in entries.values()), default=0) != len(tensor_bytes):
        raise ValueError("its length is not what its header says")
    views = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")  # the views are only read
        for name, entry in entries.items():
            dtype, shape, (begin, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
            num_elements = math.prod(shape)
            if not 0 <= begin <= end or num_elements * dtype.itemsize != end - begin:
                raise ValueError(f"'{name}' has not as many bytes as elements of its dtype")
            flat = (
                torch.frombuffer(tensor_bytes[begin:end], dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
            )
            views[name] = flat.view(shape)
    return views


def _header_checksum(metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of what a header says: version, base and the checksums of the tensors."""
    text = "\n".join((metadata["version"], metadata["base"], metadata["tensors"]))
    return hashlib.sha256(text.encode()).hexdigest()
