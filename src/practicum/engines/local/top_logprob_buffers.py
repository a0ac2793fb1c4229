"""The most likely tokens of every row on a GPU (`Request.top_logprobs`), on their way to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from practicum.engines.base import MAX_TOP_LOGPROBS
from practicum.engines.local.runner import RunningRequest, top_logprobs_of
from practicum.engines.local.sampling_mask_buffers import NUM_HOST_BUFFERS


class TopLogprobBuffers:
    """Ids and log-probs [slots, steps, count, 2] on the device, which captured graphs write, and copies on the host.

    `count` is the most that a request may ask for: one graph serves all. Both are exact in float64, so that one copy
    transfers them.
    """

    def __init__(self, num_slots: int, num_steps: int, vocabulary: int, device: torch.device, pinned: bool) -> None:
        self.count = min(MAX_TOP_LOGPROBS, vocabulary)
        self.top = torch.zeros(num_slots, num_steps, self.count, 2, dtype=torch.float64, device=device)
        self._hosts = [torch.zeros_like(self.top, device="cpu", pin_memory=pinned) for _ in range(NUM_HOST_BUFFERS)]
        self._num_copies = 0

    def write(self, logits: Tensor, temperature: Tensor, step: int) -> None:
        """Store the most likely tokens of each row of logits [W, V] at its temperature [W]."""
        values, ids = top_logprobs_of(self.count, logits, temperature)
        self.top[: len(logits), step, :, 0], self.top[: len(logits), step, :, 1] = ids, values

    def copy_to_host(self, num_rows: int) -> Tensor:
        """Start to copy what the first rows have to the host: where it will be."""
        host = self._hosts[self._num_copies % NUM_HOST_BUFFERS]
        self._num_copies += 1
        host[:num_rows].copy_(self.top[:num_rows], non_blocking=True)
        return host


def append_top_logprobs(running: Sequence[RunningRequest], top: Tensor) -> None:
    """Append what a call reports [slots, steps, count, 2] to the requests that asked; row i is that of request i."""
    for row, one in enumerate(running):
        if one.request.top_logprobs and not one.finished:
            for step in top[row, :, : one.request.top_logprobs].tolist():
                one.top_logprobs.append(tuple((int(token), value) for token, value in step if value > -torch.inf))
