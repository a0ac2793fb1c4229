"""Requests that share a prefix, such as the samples of a prompt: a GPU can read its keys and values once for all.

They have its pages in common as a rule (`CudaKVCache`), so that all but the first find them in the GPU's cache. Where
there is enough to save, attention reads them once for the group. What a page holds depends on nothing but weights,
adapter and ids: so any member's pages can be read for the others, and a group that loses a member needs no change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from practicum.engines.local.kv_cache import BLOCK_TOKENS
from practicum.engines.local.runner import RunningRequest
from practicum.kernels.shared_prefix import SharedPrefixBatch

MIN_JOINT_READ_BYTES = 48 << 20
"""Bytes per layer of repeated reads of keys and values above which it pays to read them once for each group: on an H200
that costs 9 µs."""

SharedPrefixGroup = tuple[int, list[int]]
"""The number of ids that requests begin with in common, and the requests' indices in the batch."""


class SharedPrefixGroups:
    """The groups of a batch, as tensors on the device. They keep their addresses: a captured step reads them."""

    def __init__(
        self, num_slots: int, group_size: int, key_block: int, bytes_per_token: int, device: torch.device
    ) -> None:
        self.group_size, self.key_block, self.bytes_per_token = group_size, key_block, bytes_per_token
        groups = max(1, num_slots // 2)
        self._shapes = ((groups, group_size), (groups,), (groups,), (num_slots,))
        self._numbers = torch.zeros(sum(map(np.prod, self._shapes)), dtype=torch.int64, device=device)
        self._running: list[RunningRequest] = []
        self._joint = False

    def batch(self, num_rows: int) -> SharedPrefixBatch:
        """The part of the tensors that a batch of this many rows can use."""
        parts = torch.split(self._numbers, [int(np.prod(shape)) for shape in self._shapes])
        members, leaders, lengths, row_lengths = (
            part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)
        )
        groups = max(1, num_rows // 2)
        return SharedPrefixBatch(members[:groups], leaders[:groups], lengths[:groups], row_lengths[:num_rows])

    def update(self, running: list[RunningRequest]) -> bool:
        """Group the running requests; whether it pays to read what a group shares once for all of its members."""
        if running == self._running:
            return self._joint
        self._running, groups = running, shared_prefix_groups(running, self.group_size, self.key_block)
        saved = self.bytes_per_token * sum((len(members) - 1) * length for length, members in groups)
        self._joint = bool(groups) and saved >= MIN_JOINT_READ_BYTES
        if self._joint:
            self._send(groups)
        return self._joint

    def _send(self, groups: Sequence[SharedPrefixGroup]) -> None:
        members, leaders, lengths, row_lengths = (np.zeros(s, dtype=np.int64) for s in self._shapes)
        members[:] = -1
        for index, (length, indices) in enumerate(groups):
            leader = self._running[indices[0]].slot
            members[index, : len(indices)], leaders[index], lengths[index] = indices, leader, length
            row_lengths[indices] = length
        numbers = np.concatenate([members.ravel(), leaders, lengths, row_lengths])
        self._numbers.copy_(torch.from_numpy(numbers), non_blocking=True)


def shared_prefix_groups(running: Sequence[RunningRequest], group_size: int, key_block: int) -> list[SharedPrefixGroup]:
    """Group each request with those that it shares the most blocks of `key_block` ids with, at most `group_size`."""
    hashes_per_block = key_block // BLOCK_TOKENS
    block_ends = [req.hashes[hashes_per_block - 1 :: hashes_per_block] for req in running]
    counts = Counter(chain.from_iterable(block_ends))
    by_prefix: dict[tuple[int, int], list[int]] = {}
    for index, hashes in enumerate(block_ends):
        depth = len(hashes)
        while depth and counts[hashes[depth - 1]] < 2:
            depth -= 1
        if depth:
            by_prefix.setdefault((depth * key_block, hashes[depth - 1]), []).append(index)
    groups: list[SharedPrefixGroup] = []
    for (length, _), indices in by_prefix.items():
        prefix = running[indices[0]].request.ids[:length]
        same = [index for index in indices if running[index].request.ids[:length] == prefix]  # hashes may collide
        parts = (same[start : start + group_size] for start in range(0, len(same), group_size))
        groups += [(length, part) for part in parts if len(part) > 1]
    return groups
