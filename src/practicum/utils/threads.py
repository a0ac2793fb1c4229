"""Run a plain function off the event loop, in a daemon thread of its own.

`asyncio.to_thread` shares a small pool: a few slow tools would make every other tool wait, and one that hangs would
keep the process from ending. Here there are as many threads as running calls. A thread that has finished a call waits
for another one, since starting a thread costs more than most tools do. Each call has the context variables of a new
thread (NumPy's and decimal's settings are such); values of a `threading.local` remain from earlier calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
