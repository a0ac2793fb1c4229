"""Run a plain function off the event loop, in a daemon thread that does nothing else meanwhile.

`asyncio.to_thread` shares a small pool: a few slow tools would make every other tool wait, and one that hangs for ever
would keep the process from ending. Here there are as many threads as calls under way. One that is done waits for
a further call, since starting a thread costs more than most tools do. A call finds context variables (NumPy's and
decimal's settings are such) as a new thread would; what another left in a `threading.local` is still there.
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
IDLE = 2.0
"""Seconds after which a thread that waits for a further call ends."""


class _Worker(threading.Thread):
    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="practicum-worker", daemon=True)
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.calls.put(work)

    def run(self) -> None:
        while (work := self._next()) is not None:
            contextvars.Context().run(work)
            del work  # what was called, and with what, is not kept while nothing happens
            _idle.append(self)

    def _next(self) -> Callable[[], None] | None:
        try:
            return self.calls.get(timeout=IDLE)
        except queue.Empty:
            pass
        try:
            _idle.remove(self)
        except ValueError:  # somebody has just taken it: a call is on its way
            return self.calls.get()
        return None


_idle: deque[_Worker] = deque()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # its threads stay behind


def _start(work: Callable[[], None]) -> None:
    try:
        _idle.pop().calls.put(work)
    except IndexError:
        _Worker(work).start()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The function's value or exception. If the caller stops waiting, the thread runs on unheard."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value: T | None = None
        fault: BaseException | None = None
        try:
            value = function(*args, **kwargs)
        except StopIteration as error:  # a future cannot carry one
            fault = RuntimeError(f"StopIteration: {error}")
        except Exception as error:
            fault = error
        except BaseException as error:  # sys.exit() in a tool ends the tool, not the program
            fault = RuntimeError(f"{type(error).__name__}: {error}")
        with contextlib.suppress(RuntimeError):  # a loop that is closed has nobody left who waits
            loop.call_soon_threadsafe(settle, value, fault)
        value = fault = None  # a fault's traceback leads here: it would keep the call's arguments alive

    _start(work)
    return await future
