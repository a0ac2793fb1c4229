"""Deadlines of an episode's waits. Time in a queue does not count: it says nothing about what is waited for.

A deadline knows how much of its time programs of the agent have taken: whose clock ran out decides whether an episode
is a failure of the agent or an error of its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import types
from collections.abc import Awaitable, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar, Token
from typing import Any, TypeVar

T = TypeVar("T")

_current: ContextVar[Deadline | None] = ContextVar("practicum_deadline", default=None)
SHARE_OF_JUDGE = 0.8
"""Share of the time left that a judge may use: the rest is for starting and ending what it runs."""


class Deadline:
    """A timeout that names what was waited for and is paused within `queued()`."""

    def __init__(self, seconds: float, subject: str) -> None:
        self.subject, self.seconds = subject, seconds
        self._loop = asyncio.get_running_loop()
        self._due_at: float | None = self._loop.time() + seconds
        self._timer: asyncio.Timeout | None = None
        self._token: Token[Deadline | None] | None = None
        self._seconds_left = seconds
        self._num_pauses = 0
        self.agent_seconds = 0.0
        """Seconds of this deadline in which programs of the agent ran."""

    async def of(self, awaitable: Awaitable[T]) -> T:
        """Await something under this deadline; TimeoutError if it takes too long."""
        token = _current.set(self)
        try:
            return await with_timer(awaitable, self)
        finally:
            _current.reset(token)

    async def __aenter__(self) -> Deadline:
        self._timer = asyncio.timeout_at(self._due_at)
        await self._timer.__aenter__()
        self._token = _current.set(self)
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._token is not None
        assert self._timer is not None
        _current.reset(self._token)
        try:
            await self._timer.__aexit__(kind, error, trace)
        except TimeoutError:
            raise TimeoutError(f"{self.subject} did not answer within {self.seconds:g} s") from None

    @property
    def seconds_left(self) -> float:
        """Seconds until it expires, at least 0."""
        return max(0.0, self._seconds_left if self._due_at is None else self._due_at - self._loop.time())

    @property
    def expired_on_agent(self) -> bool:
        """Whether programs of the agent have taken most of its time."""
        return self.agent_seconds > self.seconds / 2

    def pause(self) -> None:
        """Pause the deadline until `resume`; after several pauses, the last `resume` restarts it."""
        if self._num_pauses == 0 and self._due_at is not None and not self._expired():
            self._seconds_left = self._due_at - self._loop.time()
            self._set(None)
        self._num_pauses += 1

    def resume(self) -> None:
        """Restart the deadline with the time that was left."""
        self._num_pauses -= 1
        if self._num_pauses == 0 and not self._expired():
            self._set(self._loop.time() + max(0.0, self._seconds_left))

    def _expired(self) -> bool:
        return self._timer is not None and self._timer.expired()

    def _set(self, due: float | None) -> None:
        self._due_at = due
        if self._timer is not None:
            self._timer.reschedule(due)


async def with_timer(awaitable: Awaitable[T], timer: AbstractAsyncContextManager[Any]) -> T:
    """Await something under a timer that is started only if it has to wait.

    Most environments answer without waiting, and a timer costs more than that.
    """
    steps = (awaitable if type(awaitable) is types.CoroutineType else _as_coroutine(awaitable)).__await__()
    try:
        yielded = steps.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    async with timer:
        return await _continue(steps, yielded)


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    """Wrap any awaitable in a coroutine."""
    return await awaitable


@types.coroutine
def _continue(steps: Generator[Any, Any, T], yielded: Any) -> Generator[Any, Any, T]:
    """Continue a coroutine that was started by hand and has yielded."""
    try:
        while True:
            try:
                value = yield yielded
            except BaseException as error:
                yielded = steps.throw(error)
            else:
                yielded = steps.send(value)
    except StopIteration as done:
        result: T = done.value
        return result


@contextlib.contextmanager
def queued() -> Iterator[None]:
    """Pause the deadline in force, if there is one: what is waited for in here has not begun."""
    deadline = _current.get()
    if deadline is None:
        yield
        return
    deadline.pause()
    try:
        yield
    finally:
        deadline.resume()


def seconds_left() -> float:
    """Return the seconds until the deadline in force expires; infinity without one."""
    deadline = _current.get()
    return math.inf if deadline is None else deadline.seconds_left


def half_used() -> bool:
    """Return whether half of the time of the deadline in force is used up."""
    deadline = _current.get()
    return deadline is not None and deadline.seconds_left < deadline.seconds / 2


def judge_seconds(maximum: float) -> float:
    """Return the seconds that a judge of the agent's program may take: it must end before the deadline in force."""
    return min(maximum, SHARE_OF_JUDGE * seconds_left())


@contextlib.contextmanager
def agent_time() -> Iterator[None]:
    """Count the time in here, without waits in a queue, as that of a program of the agent."""
    deadline = _current.get()
    before = 0.0 if deadline is None else deadline.seconds_left
    try:
        yield
    finally:
        if deadline is not None:
            deadline.agent_seconds += before - deadline.seconds_left
