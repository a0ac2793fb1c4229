"""How long the tool calls of an episode take: measured while it runs, and never part of its record on disk."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
DIGITS = 6
"""Digits after the point of a number of seconds."""

_calls: ContextVar[list[tuple[str, float]] | None] = ContextVar("tool_calls", default=None)
"""Name and seconds of every call of the episode that runs in this context."""


def start_timing() -> None:
    """Begin an episode: calls from here on, in this context and the tasks it starts, are its own."""
    _calls.set([])


async def timed_call(name: str, answer: Awaitable[T]) -> T:
    """Await the answer of a tool and note how long it took, also where it failed."""
    begun = time.perf_counter()
    try:
        return await answer
    finally:
        _note(name, time.perf_counter() - begun)


async def timed_step(names: Sequence[str], answer: Awaitable[T]) -> T:
    """Await the step of an environment for a reply that called tools of these names.

    An environment that runs its tools itself, perhaps in another process, notes no calls: then the time of the step is
    that of its only call. Where there are several, none of them has a time.
    """
    calls, begun = _calls.get(), time.perf_counter()
    num_before = 0 if calls is None else len(calls)
    try:
        return await answer
    finally:
        if len(names) == 1 and calls is not None and len(calls) == num_before:
            _note(names[0], time.perf_counter() - begun)


def tool_seconds() -> dict[str, tuple[float, ...]]:
    """The seconds of each call of the episode so far, by tool."""
    seconds: dict[str, list[float]] = {}
    for name, value in _calls.get() or ():
        seconds.setdefault(name, []).append(round(value, DIGITS))
    return {name: tuple(values) for name, values in seconds.items()}


def _note(name: str, seconds: float) -> None:
    calls = _calls.get()
    if calls is not None:
        calls.append((name, seconds))
