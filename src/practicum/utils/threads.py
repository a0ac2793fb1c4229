"""Run a plain function off the event loop, in a daemon thread of its own, and wait there for a slot.

`asyncio.to_thread` shares a small pool: a few slow tools would make every other tool wait, and one that hangs would
keep the process from ending. Here there are as many threads as running calls. A thread that has finished a call waits
for another one, since starting a thread costs more than most tools do. Each call has the context variables of a new
thread (NumPy's and decimal's settings are such); values of a `threading.local` remain from earlier calls.

Programs in a sandbox are run by such threads, at most so many at once, and deadlines belong to the event loop: a thread
tells the coroutine that waits for it when it begins to wait for a slot and when it has one, and the deadline is paused
in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from practicum.utils.deadline import queued

P = ParamSpec("P")
T = TypeVar("T")
IDLE_SECONDS = 2.0
"""Seconds after which a thread without a call ends."""


class _WorkerThread(threading.Thread):
    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="practicum-worker", daemon=True)
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.calls.put(work)

    def run(self) -> None:
        while (work := self._next()) is not None:
            contextvars.Context().run(work)
            del work  # do not keep the call and its arguments alive while idle
            _idle.append(self)

    def _next(self) -> Callable[[], None] | None:
        try:
            return self.calls.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            pass
        try:
            _idle.remove(self)
        except ValueError:  # another thread has just taken it: a call is coming
            return self.calls.get()
        return None


_idle: deque[_WorkerThread] = deque()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # the threads do not exist in the child


def _start(work: Callable[[], None]) -> None:
    try:
        _idle.pop().calls.put(work)
    except IndexError:
        _WorkerThread(work).start()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the function's value or raise its exception. If the caller is cancelled, the thread still finishes."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def set_outcome(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value: T | None = None
        error_raised: BaseException | None = None
        try:
            value = function(*args, **kwargs)
        except StopIteration as error:  # a future cannot carry one
            error_raised = RuntimeError(f"StopIteration: {error}")
        except Exception as error:
            error_raised = error
        except BaseException as error:  # sys.exit() in a tool ends the tool, not the program
            error_raised = RuntimeError(f"{type(error).__name__}: {error}")
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(set_outcome, value, error_raised)
        value = error_raised = None  # the traceback refers to this frame and would keep the arguments alive

    _start(work)
    return await future


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
