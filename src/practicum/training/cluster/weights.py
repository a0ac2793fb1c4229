"""Trained weights as a message from the learner to rollout workers: versioned, with a checksum per tensor.

A message is a safetensors file in parts: its header, then the bytes of each tensor where they are, so that nothing is
copied until the message is sent. It holds whole tensors, or only the elements of a tensor that have changed since the
version that the message names as its base. Whoever receives it checks everything before the first weight is changed:
the base, names, shapes, dtypes, and the SHA-256 of every tensor as it will be.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Message = list[NDArray[np.uint8]]
"""The header, then the bytes of every tensor in the order of the header; joined they are a safetensors file."""
MAX_DELTA_SHARE = 0.5
"""Changed elements are sent instead of a whole tensor where they take less than this share of its bytes."""
POSITIONS, VALUES = "@positions", "@values"
"""Endings of the names of the two parts of a tensor of which only changed elements are sent."""
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
"""The dtypes of a safetensors file by their names in its header."""
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class WeightsRefused(Exception):
    """A message that is damaged, for another model, or for another version than the receiver has."""


@dataclass(frozen=True)
class TensorRecord:
    """What a message says about one tensor: its SHA-256 after the update, and whether only changes are sent."""

    sha256: str
    is_delta: bool


def checksum(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's bytes."""
    return hashlib.sha256(_bytes_of(tensor.detach().to("cpu").contiguous()).data).hexdigest()


def checksums(tensors: Sequence[Tensor]) -> list[str]:
    """Return the SHA-256 of every tensor's bytes, computed with as many threads as torch has."""
    largest_first = sorted(range(len(tensors)), key=lambda index: -tensors[index].nbytes)
    with ThreadPoolExecutor(torch.get_num_threads(), "practicum-checksums") as threads:
        results = threads.map(checksum, [tensors[index] for index in largest_first])
        of_index = dict(zip(largest_first, results, strict=True))
    return [of_index[index] for index in range(len(tensors))]


def _bytes_of(value: Tensor) -> NDArray[np.uint8]:
    """The bytes of a contiguous tensor on the CPU, not copied."""
    flat: NDArray[np.uint8] = value.reshape(-1).view(torch.uint8).numpy()
    return flat


def encode(
    tensors: Mapping[str, Tensor], version: int, base: tuple[int, Mapping[str, Tensor]] | None = None
) -> Message:
    """Return a message with tensors of a version; with `base` (a version and its tensors), changes where they pay.

    Its parts are the memory of the tensors where those are on the CPU: it is to be sent before they change.
    """
    values = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    parts: dict[str, Tensor] = {}
    records: dict[str, Any] = {}
    for (name, value), sha256 in zip(values.items(), checksums(list(values.values())), strict=True):
        delta = None if base is None else _changes(base[1][name], value)
        parts |= {name: value} if delta is None else {name + POSITIONS: delta[0], name + VALUES: delta[1]}
        records[name] = [sha256, delta is not None]
    is_delta = any(record[1] for record in records.values())
    metadata = {
        "version": str(version),
        "base": str(base[0]) if is_delta and base is not None else "",
        "tensors": json.dumps(records),
    }
    ordered = dict(sorted(parts.items(), key=lambda part: -part[1].element_size()))  # each at a multiple of its size
    return [_encode_header(ordered, metadata), *map(_bytes_of, ordered.values())]


def _encode_header(parts: Mapping[str, Tensor], metadata: dict[str, str]) -> NDArray[np.uint8]:
    """Return the header of a safetensors file whose tensors follow in this order; its checksum covers all of it."""
    header: dict[str, Any] = {"__metadata__": metadata}
    position = 0
    for name, value in parts.items():
        offsets = [position, position := position + value.nbytes]
        header[name] = {"dtype": DTYPE_NAMES[value.dtype], "shape": list(value.shape), "data_offsets": offsets}
    metadata["sha256"] = _header_checksum(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    return np.frombuffer(len(text).to_bytes(8, "little") + text, dtype=np.uint8)


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
def apply(message: Message, targets: Mapping[str, Tensor], current: int | None) -> int:
    """Copy a message's weights into tensors in place; returns their version.

    `current` is the version that the tensors have, None for none. Raises WeightsRefused, with no tensor changed, unless
    the message is newer than that and every tensor will be what the sender has.
    """
    header = _read_header(message)
    metadata = header["__metadata__"]
    if current is not None and int(metadata["version"]) <= current:
        raise WeightsRefused(f"the message has version {metadata['version']}, and the weights here are {current}")
    try:
        parts = _views(header, message[1:])
        records = {name: TensorRecord(*record) for name, record in json.loads(metadata["tensors"]).items()}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise WeightsRefused(f"the message is damaged ({error})") from error
    if metadata["base"] and metadata["base"] != str(current):
        raise WeightsRefused(f"the changes are on version {metadata['base']}, and the weights here are {current}")
    if set(records) != set(targets):
        differing = sorted(set(records) ^ set(targets))
        raise WeightsRefused(f"the message is for another model ({len(differing)} tensors differ: {differing[0]}, ...)")
    updated = {name: _updated(name, record, parts, targets[name]) for name, record in records.items()}
    for (name, record), sha256 in zip(records.items(), checksums(list(updated.values())), strict=True):
        if sha256 != record.sha256:
            raise WeightsRefused(f"'{name}' does not have the checksum that the sender gave")
    for name, value in updated.items():
        targets[name].copy_(value)
    return int(metadata["version"])


def _updated(name: str, record: TensorRecord, parts: Mapping[str, Tensor], target: Tensor) -> Tensor:
    """Return a tensor as it will be, of the right shape and dtype; its bytes are still to be checked."""
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
    return value


def _read_header(message: Message) -> dict[str, Any]:
    """Return the header of a message, which is whole."""
    try:
        view = message[0].data
        if int.from_bytes(view[:8], "little") != len(view) - 8:
            raise ValueError("its length is another")
        header: dict[str, Any] = json.loads(bytes(view[8:]))
        metadata = header["__metadata__"]
        int(metadata["version"])
        is_whole = _header_checksum(header) == metadata["sha256"] and {"base", "tensors"} <= set(metadata)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise WeightsRefused(f"the message has no readable header ({error})") from error
    if not is_whole:
        raise WeightsRefused("the header does not have the checksum that the sender gave")
    return header


def _views(header: Mapping[str, Any], parts: Sequence[NDArray[np.uint8]]) -> dict[str, Tensor]:
    """Return the tensors of a message as views of its parts; ValueError or KeyError where they are not what the header
    says."""
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    if len(entries) != len(parts):
        raise ValueError("it has not as many parts as its header says")
    views, position = {}, 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")  # the views are only read
        for (name, entry), part in zip(entries.items(), parts, strict=True):
            dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
            begin, position = position, position + math.prod(shape) * dtype.itemsize
            if entry["data_offsets"] != [begin, position] or len(part) != position - begin:
                raise ValueError(f"'{name}' has not as many bytes as elements of its dtype")
            flat = torch.frombuffer(part, dtype=dtype) if len(part) else torch.empty(0, dtype=dtype)
            views[name] = flat.view(shape)
    return views


def _header_checksum(header: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what a header says: version, base, the checksums of the tensors, and where they are."""
    metadata = {name: value for name, value in header["__metadata__"].items() if name != "sha256"}
    return hashlib.sha256(json.dumps({**header, "__metadata__": metadata}, sort_keys=True).encode()).hexdigest()
