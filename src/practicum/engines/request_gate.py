"""A gate before an engine: it counts the requests under way, and holds new ones back while the weights change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class RequestGate:
    """Requests pass while the gate is open. `paused` closes it and waits for those that have passed."""

    def __init__(self) -> None:
        self.num_open = 0
        """Requests that have passed and are not answered yet."""
        self._num_pauses = 0
        self._waiting: list[asyncio.Future[None]] = []
        """Requests that wait for the end of a pause, and pauses that wait for the end of requests."""

    @contextlib.asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """The time of one request; it begins when no pause is in progress."""
        while self._num_pauses:
            await self._change()
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1
            self._wake()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """A time in which no request is under way: those that are end first, new ones wait."""
        self._num_pauses += 1
        try:
            while self.num_open:
                await self._change()
            yield
        finally:
            self._num_pauses -= 1
            self._wake()

    async def _change(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.get_loop().call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
