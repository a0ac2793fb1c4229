"""Deadlines of an episode's waits. Time spent in a queue does not count: it says nothing about who is waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar, Token
from typing import Any

_running: ContextVar[Deadline | None] = ContextVar("practicum_deadline", default=None)


class Deadline:
    """`asyncio.timeout` that says what was waited for and stands still within `queued()`."""

    def __init__(self, seconds: float, what: str) -> None:
        self.what, self.seconds = what, seconds
        self._timer = asyncio.timeout(seconds)
        self._token: Token[Deadline | None] | None = None
        self._left = seconds
        self._holds = 0

    async def __aenter__(self) -> Deadline:
        await self._timer.__aenter__()
        self._token = _running.set(self)
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._token is not None
        _running.reset(self._token)
        try:
            await self._timer.__aexit__(kind, error, trace)
        except TimeoutError:
            raise TimeoutError(f"{self.what} did not answer within {self.seconds:g} s") from None

    def hold(self) -> None:
        """Stop the clock until `go_on`; of several that hold it, the last lets it go on."""
        when = self._timer.when()
        if self._holds == 0 and when is not None and not self._timer.expired():
            self._left = when - asyncio.get_running_loop().time()
            self._timer.reschedule(None)
        self._holds += 1

    def go_on(self) -> None:
        self._holds -= 1
        if self._holds == 0 and not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time() + max(0.0, self._left))


@contextlib.contextmanager
def queued() -> Iterator[None]:
    """What is waited for in here has not begun: the deadline in force, if there is one, stands still."""
    deadline = _running.get()
    if deadline is None:
        yield
        return
    deadline.hold()
    try:
        yield
    finally:
        deadline.go_on()
