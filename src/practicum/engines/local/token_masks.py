"""Masks of the tokens that a batch's requests may sample next, for those whose replies must have a response format.

The masks of a step are computed by a thread of their own: they depend on the tokens before it only. On a CPU the model
computes the step's logits meanwhile, on a GPU the engine's thread looks at the tokens that have just been sampled.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

import numpy as np
import torch
from torch import Tensor

from practicum.chat.grammar import GrammarMatcher, Grammars, WordArray, unpack_masks
from practicum.engines.local.runner import RunningRequest

Job = Callable[[Callable[[], object]], None]
"""What a thread runs. It is given a function that it may call once it hardly needs Python's lock any more."""


class JobThread:
    """A thread that runs one job at a time: a job every millisecond, for which an executor's futures cost too much."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Job, SimpleQueue[None]] | None] = SimpleQueue()
        self._ends: SimpleQueue[BaseException | None] = SimpleQueue()
        self.busy = False
        """Whether there is a job that nobody has waited for."""
        threading.Thread(target=_run_jobs, args=(self._jobs, self._ends), name=name, daemon=True).start()
        weakref.finalize(self, self._jobs.put, None)

    def start(self, job: Job) -> SimpleQueue[None]:
        """Start a job; the queue has an item once the job has said that it has begun, or has ended."""
        assert not self.busy, "the last job was not waited for"
        begun: SimpleQueue[None] = SimpleQueue()
        self.busy = True
        self._jobs.put((job, begun))
        return begun

    def wait(self) -> None:
        """Wait for the job, if there is one, and raise what it raised."""
        if self.busy:
            self.busy = False
            if (error := self._ends.get()) is not None:
                raise error


def _run_jobs(jobs: SimpleQueue[tuple[Job, SimpleQueue[None]] | None], ends: SimpleQueue[BaseException | None]) -> None:
    while (item := jobs.get()) is not None:
        job, begun = item
        error: BaseException | None = None
        try:
            job(partial(begun.put, None))
        except BaseException as caught:
            error = caught
        begun.put(None)
        ends.put(error)
        del item, job, begun, error


class BatchMasks:
    """The masks of a batch [rows, words] in host memory; rows of other requests allow every token."""

    def __init__(self, grammars: Grammars, num_rows: int, pin_memory: bool = False) -> None:
        """`grammars` are those of the engine's tokenizer, which all requests share."""
        self.grammars = grammars
        self.tensor: Tensor = torch.full((num_rows, grammars.num_words), -1, dtype=torch.int32, pin_memory=pin_memory)
        self.masks: WordArray = self.tensor.numpy()
        self._restricted: set[int] = set()
        """Rows that hold a mask."""
        self._thread = JobThread("practicum-token-masks")

    def start(self, running: Sequence[RunningRequest], wait_until_begun: bool = False) -> None:
        """Begin to compute the masks of a batch's next tokens; row i is that of the request at index i.

        Masks that are on their way and that nobody has waited for are given up. `wait_until_begun`: for a caller that
        goes on in Python, which would otherwise keep Python's lock from the thread for a switch interval.
        """
        with contextlib.suppress(Exception):  # of masks that nobody has waited for, which write to the same rows
            self._thread.wait()
        matchers = self._restrict(running)
        if matchers:
            begun = self._thread.start(partial(self.grammars.compute_masks, matchers, self.masks))
            if wait_until_begun:
                begun.get()

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
        self._thread.wait()
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
