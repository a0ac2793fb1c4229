"""A tensor that captured graphs write on a GPU, and its copies on the host."""

from __future__ import annotations

import torch
from torch import Tensor

NUM_HOST_BUFFERS = 3
"""Results are read in order and at most two calls are pending: a buffer is free again when its turn comes."""


class HostCopies:
    """A tensor [slots, ...] on the device, and buffers on the host that take copies of it in turn."""

    def __init__(self, tensor: Tensor, pinned: bool) -> None:
        self.tensor = tensor
        self._hosts = [torch.zeros_like(tensor, device="cpu", pin_memory=pinned) for _ in range(NUM_HOST_BUFFERS)]
        self._num_copies = 0

    def copy_to_host(self, num_rows: int) -> Tensor:
        """Start to copy the first rows to the host: where they will be."""
        host = self._hosts[self._num_copies % NUM_HOST_BUFFERS]
        self._num_copies += 1
        host[:num_rows].copy_(self.tensor[:num_rows], non_blocking=True)
        return host
