"""Deadlines of an episode's waits. Time spent in a queue does not count: it says nothing about who is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Awaitable, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar, Token
from typing import Any, TypeVar

T = TypeVar("T")

_running: ContextVar[Deadline | None] = ContextVar("practicum_deadline", default=None)


class Deadline:
    """`asyncio.timeout` that says what was waited for and stands still within `queued()`."""

    def __init__(self, seconds: float, what: str) -> None:
        self.what, self.seconds = what, seconds
        self._loop = asyncio.get_running_loop()
        self._due: float | None = self._loop.time() + seconds
        self._timer: asyncio.Timeout | None = None
        self._token: Token[Deadline | None] | None = None
        self._left = seconds
        self._holds = 0

    async def of(self, wanted: Awaitable[T]) -> T:
        """What is waited for, if it comes in time."""
        token = _running.set(self)
        try:
            return await clocked(wanted, self)
        finally:
            _running.reset(token)

    async def __aenter__(self) -> Deadline:
        self._timer = asyncio.timeout_at(self._due)
        await self._timer.__aenter__()
        self._token = _running.set(self)
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._token is not None
        assert self._timer is not None
        _running.reset(self._token)
        try:
            await self._timer.__aexit__(kind, error, trace)
        except TimeoutError:
            raise TimeoutError(f"{self.what} did not answer within {self.seconds:g} s") from None

    def hold(self) -> None:
        """Stop the clock until `go_on`; of several that hold it, the last lets it go on."""
        if self._holds == 0 and self._due is not None and not self._expired():
            self._left = self._due - self._loop.time()
            self._set(None)
        self._holds += 1

    def go_on(self) -> None:
        self._holds -= 1
        if self._holds == 0 and not self._expired():
            self._set(self._loop.time() + max(0.0, self._left))

    def _expired(self) -> bool:
        return self._timer is not None and self._timer.expired()

    def _set(self, due: float | None) -> None:
        self._due = due
        if self._timer is not None:
            self._timer.reschedule(due)


async def clocked(wanted: Awaitable[T], clock: AbstractAsyncContextManager[Any]) -> T:
    """What is wanted, under a clock that is wound up only if there is something to wait for: most worlds answer at
    once, and timers cost more than that."""
    begun = (wanted if type(wanted) is types.CoroutineType else _whole(wanted)).__await__()
    try:
        needed = begun.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    async with clock:
        return await _rest(begun, needed)


async def _whole(wanted: Awaitable[T]) -> T:
    """Whatever can be awaited, as a coroutine."""
    return await wanted


@types.coroutine
def _rest(begun: Generator[Any, Any, T], needed: Any) -> Generator[Any, Any, T]:
    """`await` for what has been begun and needs something."""
    try:
        while True:
            try:
                given = yield needed
            except BaseException as error:
                needed = begun.throw(error)
            else:
                needed = begun.send(given)
    except StopIteration as done:
        found: T = done.value
        return found


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
