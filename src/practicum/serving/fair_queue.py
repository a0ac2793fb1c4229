"""A queue that is fair between clients: who asks for much waits behind who asks for little."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque

from practicum.serving.errors import APIError

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1, 60
SMOOTHING = 0.1
"""Weight of the newest request in the mean duration."""


class FairQueue:
    """At most `capacity` replies under way; others wait, at most `max_waiting`, one client after the other."""

    def __init__(self, capacity: int, max_waiting: int) -> None:
        self.capacity, self.max_waiting = capacity, max_waiting
        self.running = 0
        self.waiting = 0
        self._clients: OrderedDict[str, deque[tuple[int, asyncio.Future[None]]]] = OrderedDict()
        self._mean_seconds = 1.0

    async def acquire(self, client: str, weight: int) -> int:
        """Wait for room for `weight` replies and take it; return what `release` is to be given back."""
        weight = min(weight, self.capacity)
        if not self._clients and self.running + weight <= self.capacity:
            self.running += weight
            return weight
        if self.waiting >= self.max_waiting:
            raise APIError(
                429, f"{self.waiting} requests are waiting already; try again later.", None, "queue_full",
                retry_after=self.retry_after,
            )  # fmt: skip
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clients.setdefault(client, deque()).append((weight, future))
        self.waiting += 1
        try:
            await future
        except BaseException:
            if future.done() and not future.cancelled():  # room was given at the same moment
                self.release(weight, None)
            else:
                self._remove(client, future)
            raise
        return weight

    def release(self, weight: int, seconds: float | None) -> None:
        """Give room back; `seconds` is how long the request took, None if that says nothing."""
        self.running -= weight
        if seconds is not None:
            self._mean_seconds += SMOOTHING * (seconds - self._mean_seconds)
        self._admit()

    def _admit(self) -> None:
        while self._clients:
            client = next(iter(self._clients))
            weight, future = self._clients[client][0]
            if self.running + weight > self.capacity:
                return
            self._clients[client].popleft()
            self.waiting -= 1
            if self._clients[client]:
                self._clients.move_to_end(client)
            else:
                del self._clients[client]
            if not future.done():
                self.running += weight
                future.set_result(None)

    def _remove(self, client: str, future: asyncio.Future[None]) -> None:
        queue = self._clients.get(client, deque())
        for item in queue:
            if item[1] is future:
                queue.remove(item)
                self.waiting -= 1
                break
        if not queue:
            self._clients.pop(client, None)
        self._admit()

    @property
    def retry_after(self) -> int:
        """Seconds after which there is likely to be room."""
        expected = self._mean_seconds * (self.waiting + 1) / self.capacity
        return max(MIN_RETRY_SECONDS, min(MAX_RETRY_SECONDS, math.ceil(expected)))
