"""The tokens that top-k, top-p and min-p leave to sample from on a GPU, as bit masks on their way to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from practicum.chat.sampling_mask import mask_ids
from practicum.engines.local.host_copies import HostCopies
from practicum.engines.local.runner import RunningRequest


class KeptBuffers(HostCopies):
    """Masks [slots, steps, words]."""

    def __init__(self, num_slots: int, num_steps: int, vocabulary: int, device: torch.device, pinned: bool) -> None:
        masks = torch.zeros(num_slots, num_steps, -(-vocabulary // 32), dtype=torch.int32, device=device)
        super().__init__(masks, pinned)
        self._bits = torch.tensor([1 << bit for bit in range(32)], dtype=torch.int64, device=device)

    def write(self, logits: Tensor, step: int) -> None:
        """Store which tokens of each row have a logit [W, V] above -inf."""
        rows, size = logits.shape
        kept = torch.zeros(rows, 32 * self.tensor.shape[2], dtype=torch.int64, device=logits.device)
        kept[:, :size] = logits > -torch.inf
        words = (kept.view(rows, -1, 32) * self._bits).sum(-1)
        self.tensor[:rows, step] = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def append_kept(running: Sequence[RunningRequest], masks: Tensor) -> None:
    """Append the ids of masks [slots, steps, words] to the requests that record them; row i is that of request i."""
    rows = [row for row, req in enumerate(running) if req.records_kept and not req.finished]
    if not rows:
        return
    chosen = masks[rows].numpy()
    sets = mask_ids(chosen.reshape(-1, chosen.shape[2]))
    for index, row in enumerate(rows):
        running[row].kept += sets[index * chosen.shape[1] : (index + 1) * chosen.shape[1]]
