"""Requests under way: what the event loop hands to the engine's thread, and how results go back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from practicum.engines.base import Generation, Request
from practicum.engines.local.prefix_cache import NO_MATCH, PrefixMatch


@dataclass(eq=False)
class RunningRequest:
    """One request with its tokens so far and its place in the batch and the KV cache."""

    request: Request
    future: asyncio.Future[Generation]
    loop: asyncio.AbstractEventLoop
    ids: list[int]
    """The prompt's ids, then those that were generated."""
    max_new_tokens: int
    hashes: list[int] = field(default_factory=list)
    """Hashes of the prompt's blocks (`prefix_cache.block_hashes`)."""
    num_cached: int = 0
    """Prompt tokens whose keys and values came from the cache."""
    continues_session: bool = False
    """Whether the prefix was cached by an earlier turn of the same session."""
    awaited: bool = False
    """Whether another request waits for the prompt that this one is about to compute."""
    new_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prefix_match: PrefixMatch = NO_MATCH
    """What the prefix cache held of the prompt at admission, until a slot is allocated."""
    num_scheduled: int = 0
    """Tokens that a runner was asked for, whether or not they have come back."""
    finished: bool = False
    index: int = -1
    """Index in the running batch."""
    slot: int = -1
    """Slot of the KV cache."""
    per_token: bool = field(init=False)
    """Whether each token must be looked at alone, for a stop string or a listener."""

    def __post_init__(self) -> None:
        self.per_token = bool(self.request.sampling.stop) or self.request.on_token is not None


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
