"""What decoding keeps per slot besides keys and values: the next token's input and how to sample."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class SlotState:
    """Tensors indexed by slot of the KV cache, on the decoder's device; a captured CUDA graph reads them in place."""

    def __init__(self, num_slots: int, noise_length: int, device: torch.device) -> None:
        self.last_id = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """The id that the next step feeds."""
        self.position = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.temperature = torch.ones(num_slots, device=device)
        self.top_k = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.top_p = torch.ones(num_slots, device=device)
        self.step = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """Tokens sampled so far: the column of `noise` that the next one uses."""
        self.noise = torch.zeros(num_slots, noise_length, device=device)
        """Uniform random numbers [slots, tokens], drawn from each request's own seed."""
        self.adapter_mask = torch.zeros(num_slots, 0, device=device)
        """Which columns of the adapters' matrices a request uses [slots, columns] (`MultiLoRA.columns`)."""

    def tensors(self) -> tuple[Tensor, ...]:
        return (
            self.last_id, self.position, self.temperature, self.top_k, self.top_p, self.step, self.noise,
            self.adapter_mask,
        )  # fmt: skip

    def reserve_noise(self, num_tokens: int) -> None:
        """Make room for this many random numbers per slot."""
        if num_tokens > self.noise.shape[1]:
            self.noise = F.pad(self.noise, (0, num_tokens - self.noise.shape[1]))

    def copy(self, source: int, target: int) -> None:
        for tensor in self.tensors():
            tensor[target] = tensor[source]

    def swap(self, first: int, second: int) -> None:
        for tensor in self.tensors():
            tensor[[first, second]] = tensor[[second, first]]
