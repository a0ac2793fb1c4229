"""Trained weights as a message from the learner to rollout workers: versioned, with a checksum per tensor.

A message is a safetensors buffer. It holds whole tensors, or only the elements of a tensor that have changed since the
version that the message names as its base. Whoever receives it checks everything before the first weight is changed:
the base, names, shapes, dtypes, and the SHA-256 of every tensor as it will be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

MAX_DELTA_SHARE = 0.5
"""Changed elements are sent instead of a whole tensor where they take less than this share of its bytes."""
POSITIONS, VALUES = "@positions", "@values"
"""Endings of the names of the two parts of a tensor of which only changed elements are sent."""


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
def apply(message: bytes, targets: Mapping[str, Tensor], current: int | None) -> int:
    """Copy a message's weights into tensors in place; returns their version.

    `current` is the version that the tensors have, None for none. Raises WeightsRefused, with no tensor changed, unless
    the message is newer than that and every tensor will be what the sender has.
    """
    metadata = _metadata(message)
    if current is not None and int(metadata["version"]) <= current:
        raise WeightsRefused(f"the message has version {metadata['version']}, and the weights here are {current}")
    try:
        parts = safetensors.torch.load(message)
        records = {name: TensorRecord(*record) for name, record in json.loads(metadata["tensors"]).items()}
    except (SafetensorError, ValueError, TypeError) as error:
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


def _metadata(message: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors buffer."""
    try:
        length = int.from_bytes(message[:8], "little")
        metadata: dict[str, str] = json.loads(message[8 : 8 + length])["__metadata__"]
        int(metadata["version"])
        is_whole = _header_checksum(metadata) == metadata["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsRefused(f"the message has no readable header ({error})") from error
    if not is_whole:
        raise WeightsRefused("the header does not have the checksum that the sender gave")
    return metadata


def _header_checksum(metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of what a header says: version, base and the checksums of the tensors."""
    text = "\n".join((metadata["version"], metadata["base"], metadata["tensors"]))
    return hashlib.sha256(text.encode()).hexdigest()
