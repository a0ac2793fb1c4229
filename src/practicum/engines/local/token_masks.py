"""Masks of the tokens that a batch's requests may sample next, for those whose replies must have a response format.

On a CPU the masks of a step are computed by a thread of their own while the model computes the step's logits: they
depend on the tokens before it only. On a GPU the model's work is beside the host's anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from practicum.chat.grammar import GrammarMatcher, Grammars, WordArray, unpack_masks
from practicum.engines.local.runner import RunningRequest


class BatchMasks:
    """The masks of a batch [rows, words] in host memory; rows of other requests allow every token."""

    def __init__(self, grammars: Grammars, num_rows: int, pin_memory: bool = False) -> None:
        """`grammars` are those of the engine's tokenizer, which all requests share."""
        self.grammars = grammars
        self.tensor: Tensor = torch.full((num_rows, grammars.num_words), -1, dtype=torch.int32, pin_memory=pin_memory)
        self.masks: WordArray = self.tensor.numpy()
        self._restricted: set[int] = set()
        """Rows that hold a mask."""
        self._thread = ThreadPoolExecutor(1, "practicum-token-masks")
        self._future: Future[None] | None = None

    def start(self, running: Sequence[RunningRequest]) -> None:
        """Begin to compute the masks of a batch's next tokens; row i is that of the request at index i.

        Masks that are on their way and that nobody has waited for are given up.
        """
        if self._future is not None:  # it writes to the same rows
            with contextlib.suppress(Exception):
                self._future.result()
        matchers = self._restrict(running)
        self._future = self._thread.submit(self.grammars.compute_masks, matchers, self.masks) if matchers else None

    def compute(self, running: Sequence[RunningRequest]) -> None:
        """Compute the masks of a batch's next tokens in this thread: the model's work needs no thread of the host."""
        matchers = self._restrict(running)
        if matchers:
            self.grammars.compute_masks(matchers, self.masks)

    def _restrict(self, running: Sequence[RunningRequest]) -> list[tuple[GrammarMatcher, int]]:
        """The matchers whose masks are to be computed, with their rows; the other rows allow every token."""
        matchers = [
            (req.matcher, row)
            for row, req in enumerate(running)
            if req.matcher is not None and not req.finished and not req.matcher.finished
        ]
        rows = {row for _, row in matchers}
        for row in self._restricted - rows:
            self.masks[row] = -1
        self._restricted = rows
        return matchers

    def wait(self) -> list[int]:
        """Wait for the masks and return the rows that hold one, in order."""
        if self._future is not None:
            self._future.result()
            self._future = None
        return sorted(self._restricted)

    def append(self, running: Sequence[RunningRequest], ids: Sequence[int]) -> None:
        """Let the matchers of a batch follow the tokens that were sampled; they are consumed by the next `start`."""
        for req, token in zip(running, ids, strict=False):
            matcher = req.matcher
            if matcher is None or matcher.finished:
                continue
            if token in self.grammars.end_ids or matcher.error:
                matcher.finished = True
            else:
                matcher.pending = token


def batch_masks(running: Sequence[RunningRequest], num_rows: int, pin_memory: bool = False) -> BatchMasks | None:
    """Masks for the batches of an engine, once one of its requests needs them."""
    grammars = next((req.matcher.grammars for req in running if req.matcher is not None), None)
    return None if grammars is None else BatchMasks(grammars, num_rows, pin_memory)


def apply_masks(logits: Tensor, masks: WordArray, rows: Sequence[int]) -> None:
    """Set the logits [B, V] of tokens that a row's mask does not have to -inf, on a CPU."""
    if len(rows) > len(logits) // 2 and logits.shape[1] <= 32 * masks.shape[1]:  # without a copy; other rows allow all
        forbidden = unpack_masks(masks[: len(logits)], logits.shape[1]) == 0
        logits.masked_fill_(torch.from_numpy(forbidden), -torch.inf)
        return
    index = torch.tensor(rows)
    allowed = torch.from_numpy(unpack_masks(np.ascontiguousarray(masks[list(rows)]), logits.shape[1]))
    logits[index] = logits[index].masked_fill_(~allowed, -torch.inf)


def masked_logits(logits: Tensor, masks: Tensor) -> Tensor:
    """Return logits [B, V] with -inf for the tokens that a row's mask [B, words] does not have; masks on any device.

    It has no shape or copy that depends on the masks, so that a CUDA graph can capture it.
    """
    bits = (masks.view(torch.uint8)[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=masks.device)) & 1
    allowed = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    size = min(logits.shape[1], 8 * bits.shape[1])
    allowed[:, :size] = bits.flatten(1)[:, :size].bool()
    return logits.masked_fill(~allowed, -torch.inf)
