"""Waiting for one of the sandbox's slots, during which an episode's deadline is paused.

Programs are run by threads, and deadlines belong to the event loop. So a thread notifies the coroutine that waits for
it when it begins to wait for a slot and when it has one.
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
QueueCallback = Callable[[bool], None]
"""Called with True when a thread begins to wait for a slot, and with False when it has one."""

_queue_callback: ContextVar[QueueCallback | None] = ContextVar("practicum_sandbox_tell", default=None)


@contextlib.contextmanager
def slot(slots: threading.Semaphore) -> Iterator[None]:
    """Hold one of the slots; wait for one if none is free."""
    if not slots.acquire(blocking=False):
        on_queue = _queue_callback.get() or (lambda waiting: None)
        on_queue(True)
        slots.acquire()
        on_queue(False)
    try:
        yield
    finally:
        slots.release()


@contextlib.contextmanager
def pause_deadline_while_queued() -> Iterator[QueueCallback]:
    """Yield a callback for a thread: while the thread waits for a slot, this coroutine's deadline is paused."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    held = contextlib.ExitStack()
    finished = False

    def update(waiting: bool) -> None:
        if waiting and not finished:
            held.enter_context(queued())
        else:
            held.close()

    def on_queue(waiting: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(update, waiting, context=context)

    try:
        yield on_queue
    finally:
        finished = True
        held.close()


def with_queue_callback(on_queue: QueueCallback, function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function that runs in a thread so that its waits for a slot call `on_queue`."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        _queue_callback.set(on_queue)
        return function(*args, **kwargs)

    return wrapper


async def in_thread_with_slots(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function that uses the sandbox in a thread; its waits for a slot do not count against the deadline."""
    with pause_deadline_while_queued() as on_queue:
        return await in_thread(with_queue_callback(on_queue, function), *args, **kwargs)
