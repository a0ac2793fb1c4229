"""Waiting for one of the sandbox's places, during which an episode's deadline stands still.

Programs are run by threads, and deadlines belong to the event loop. So a thread tells the coroutine that waits for it
when it joins the queue and when it has its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from practicum.utils.deadline import queued
from practicum.utils.threads import in_thread

P = ParamSpec("P")
T = TypeVar("T")
Tell = Callable[[bool], None]
"""Told True when a thread begins to wait for a place, and False when it has one."""

_tell: ContextVar[Tell | None] = ContextVar("practicum_sandbox_tell", default=None)


@contextlib.contextmanager
def place(slots: threading.Semaphore) -> Iterator[None]:
    """One of the places, waited for if none is free."""
    if not slots.acquire(blocking=False):
        tell = _tell.get() or (lambda waits: None)
        tell(True)
        slots.acquire()
        tell(False)
    try:
        yield
    finally:
        slots.release()


@contextlib.contextmanager
def listening() -> Iterator[Tell]:
    """For a coroutine: while its thread waits for a place, the deadline in force here stands still."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    held = contextlib.ExitStack()
    over = False

    def hear(waits: bool) -> None:
        if waits and not over:
            held.enter_context(queued())
        else:
            held.close()

    def tell(waits: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has gone: nobody waits
            loop.call_soon_threadsafe(hear, waits, context=context)

    try:
        yield tell
    finally:
        over = True
        held.close()


def telling(tell: Tell, function: Callable[P, T]) -> Callable[P, T]:
    """The function, for a thread: whoever listens is told of its waits."""

    @functools.wraps(function)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        _tell.set(tell)
        return function(*args, **kwargs)

    return told


async def in_thread_with_places(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`in_thread` for a function that may run programs: its waits for a place do not count."""
    with listening() as tell:
        return await in_thread(telling(tell, function), *args, **kwargs)
