"""The most likely tokens of every row on a GPU (`Request.top_logprobs`), on their way to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from practicum.engines.base import MAX_TOP_LOGPROBS
from practicum.engines.local.host_copies import HostCopies
from practicum.engines.local.runner import RunningRequest
from practicum.engines.local.sampling import top_logprobs_of


class TopLogprobBuffers(HostCopies):
    """Ids and log-probs [slots, steps, count, 2].

    `count` is the most that a request may ask for: one graph serves all. Both are exact in float64, so that one copy
    transfers them.
    """

    def __init__(self, num_slots: int, num_steps: int, vocabulary: int, device: torch.device, pinned: bool) -> None:
        self.count = min(MAX_TOP_LOGPROBS, vocabulary)
        super().__init__(torch.zeros(num_slots, num_steps, self.count, 2, dtype=torch.float64, device=device), pinned)

    def write(self, logits: Tensor, temperature: Tensor, step: int) -> None:
        """Store the most likely tokens of each row of logits [W, V] at its temperature [W]."""
        values, ids = top_logprobs_of(self.count, logits, temperature)
        self.tensor[: len(logits), step, :, 0], self.tensor[: len(logits), step, :, 1] = ids, values


def append_top_logprobs(running: Sequence[RunningRequest], top: Tensor) -> None:
    """Append what a call reports [slots, steps, count, 2] to the requests that asked; row i is that of request i."""
    for row, req in enumerate(running):
        if req.request.top_logprobs and not req.finished:
            for step in top[row, :, : req.request.top_logprobs].tolist():
                req.top_logprobs.append(tuple((int(token), value) for token, value in step if value > -torch.inf))
