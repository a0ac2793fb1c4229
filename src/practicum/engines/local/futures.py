"""What the engine's thread hands back to the event loops: results of requests and adapter changes, and new tokens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from practicum.engines.base import Generation, SampledToken
from practicum.engines.local.runner import RunningRequest
from practicum.errors import EngineError


@dataclass(eq=False)
class AdapterChange:
    """A change of the adapters, made by the engine's thread between two decode calls."""

    action: Callable[[], None]
    future: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop

    def apply(self) -> None:
        try:
            self.action()
        except Exception as error:
            resolve(self, error)
        else:
            resolve(self, None)


Result = Generation | Exception | None


def failed_step(error: Exception) -> EngineError:
    """What the caller of a request is told whose step has failed."""
    return EngineError(f"the local engine failed: {type(error).__name__}: {error}")


def resolve(item: RunningRequest | AdapterChange, value: Result) -> None:
    """Set the result of one future from the engine's thread; a cancelled future is left alone."""
    resolve_all([(item, value)])


def resolve_all(results: Sequence[tuple[RunningRequest | AdapterChange, Result]]) -> None:
    """Set the results of many futures from the engine's thread, waking each event loop once."""
    for loop in dict.fromkeys(item.loop for item, _ in results):
        with contextlib.suppress(RuntimeError):  # nobody waits on a loop that is closed
            loop.call_soon_threadsafe(_set_results, [(item, value) for item, value in results if item.loop is loop])


def _set_results(results: Sequence[tuple[RunningRequest | AdapterChange, Result]]) -> None:
    for item, value in results:
        if item.future.done():
            continue
        if isinstance(value, Exception):
            item.future.set_exception(value)
        else:
            item.future.set_result(value)  # type: ignore[arg-type]


def notify_all(heard: Sequence[tuple[RunningRequest, list[SampledToken]]]) -> None:
    """Pass new tokens to the listeners of their requests, waking each event loop once."""
    for loop in dict.fromkeys(one.loop for one, _ in heard):
        with contextlib.suppress(RuntimeError):  # nobody listens on a loop that is closed
            loop.call_soon_threadsafe(_call_listeners, [item for item in heard if item[0].loop is loop])


def _call_listeners(heard: Sequence[tuple[RunningRequest, list[SampledToken]]]) -> None:
    for one, tokens in heard:
        if one.request.on_tokens is not None and not one.future.cancelled():
            one.request.on_tokens(tokens)
