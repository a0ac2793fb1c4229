"""Run a plain function off the event loop, in a daemon thread of its own.

`asyncio.to_thread` shares a small pool: a few slow tools would make every other tool wait, and one
that hangs for ever would keep the process from ending. A thread a call costs some tens of
microseconds and has neither fault.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, fault)

    threading.Thread(target=work, name=f"practicum-{getattr(function, '__name__', 'call')}", daemon=True).start()
    return await future
