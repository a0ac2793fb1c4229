"""What the event loop hands to the thread that decodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from practicum.engines.base import Generation, Request
from practicum.engines.local.prefix_cache import CachedPrefix


@dataclass(eq=False)
class RunningRequest:
    """One request under way."""

    request: Request
    future: asyncio.Future[Generation]
    loop: asyncio.AbstractEventLoop
    ids: list[int]
    limit: int
    hashes: list[int] = field(default_factory=list)
    cached: int = 0
    continues: bool = False
    awaited: bool = False
    """Whether another row waits for what this one is about to compute."""
    new: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    found: tuple[CachedPrefix | None, int] = (None, 0)
    """What was cached of its prompt when it was let in."""
    asked: int = 0
    """Tokens that a GPU was asked for, heard or not."""
    over: bool = False
    slot: int = -1
    plain: bool = field(init=False)
    """Whether nobody looks at single tokens."""

    def __post_init__(self) -> None:
        self.plain = not self.request.sampling.stop and self.request.on_token is None


Completions = list[tuple[RunningRequest, list[int], list[float], bool]]
"""What a burst gave each row: ids, log-probs, and whether an end may be among them."""


@dataclass(eq=False)
class AdapterChange:
    """Something to be done between two steps, by the thread that decodes."""

    do: Callable[[], None]
    future: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop

    def make(self) -> None:
        try:
            self.do()
        except Exception as error:
            resolve(self, error)
        else:
            resolve(self, None)


def resolve(item: RunningRequest | AdapterChange, value: Generation | Exception | None) -> None:
    """Settle a future from the engine's thread; an episode that gave up no longer listens."""
    resolve_all([(item, value)])


def resolve_all(answers: Sequence[tuple[RunningRequest | AdapterChange, Generation | Exception | None]]) -> None:
    """The same for many, and every event loop is woken up once."""
    for loop in dict.fromkeys(item.loop for item, _ in answers):
        with contextlib.suppress(RuntimeError):  # a loop that is closed has nobody left who listens
            loop.call_soon_threadsafe(_tell, [(item, value) for item, value in answers if item.loop is loop])


def _tell(answers: Sequence[tuple[RunningRequest | AdapterChange, Generation | Exception | None]]) -> None:
    for item, value in answers:
        if item.future.done():
            continue
        if isinstance(value, Exception):
            item.future.set_exception(value)
        else:
            item.future.set_result(value)  # type: ignore[arg-type]
