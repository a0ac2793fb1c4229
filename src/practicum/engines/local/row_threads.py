"""Threads that compute parts of a batch at the same time.

The products of a small model are too small to divide each of them among threads: waking them up takes longer. So the
rows of a batch are divided instead, once per pass, and each thread computes all layers for its rows. A row's numbers do
not depend on the rows beside it, so they are the same with any number of threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Result = TypeVar("Result")


class RowThreads:
    """The engine's thread and `count - 1` others, each with one thread for its own products."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None

    def run(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """The results of at most `count` calls, which run at the same time; all have ended when this returns."""
        if len(calls) == 1:
            return [calls[0]()]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count - 1, "practicum-rows", torch.set_num_threads, (1,))
        others: list[Future[Result]] = [self._pool.submit(_inference, call) for call in calls[1:]]
        try:
            first = calls[0]()
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]

    @contextlib.contextmanager
    def until_exit(self) -> Iterator[None]:
        """End the threads when the block ends."""
        try:
            yield
        finally:
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None


def _inference(call: Callable[[], Result]) -> Result:
    with torch.inference_mode():
        return call()
