"""Requests under way: what the event loop hands to the engine's thread, where a reply ends, how results go back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from practicum.engines.base import Generation, Request
from practicum.engines.local.prefix_cache import NO_MATCH, PrefixMatch
from practicum.trajectory import StopReason

STOP_WINDOW = 24
"""Tokens decoded to look for a stop string; longer strings are refused."""


class StopStrings:
    """A search for stop strings in the text of a tokenizer's ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._token_texts: dict[int, str] = {}
        """The text of single tokens, of those that were looked up."""

    def reached(self, ids: Sequence[int], stops: Sequence[str]) -> bool:
        """Whether a reply that has just got its last id contains one of the strings in its last tokens."""
        if not self._can_end(ids[-1], stops):
            return False
        tail = self._text(ids[-STOP_WINDOW:])
        return any(text in tail for text in stops)

    def _can_end(self, token: int, stops: Sequence[str]) -> bool:
        """Whether one of the strings can end in this token.

        An ASCII character is always within one token; spaces may be missing from a token that is decoded alone.
        """
        if token not in self._token_texts:
            self._token_texts[token] = self._text([token])
        token_text = self._token_texts[token]
        return any(not text[-1].isascii() or text[-1].isspace() or text[-1] in token_text for text in stops if text)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


def append_tokens(
    running: RunningRequest, ids: Sequence[int], logprobs: Sequence[float], end_ids: Sequence[int], stops: StopStrings
) -> StopReason | None:
    """Append new tokens to a request up to where it stops; the reason, or None if it goes on."""
    if running.per_token:
        size = 1
    else:
        size = next((index + 1 for index, token in enumerate(ids) if token in end_ids), len(ids))
        size = min(size, running.max_new_tokens - len(running.new_ids))
    start = 0
    while start < len(ids):
        new = ids[start : start + size]
        running.new_ids += new
        running.ids += new
        running.logprobs += logprobs[start : start + size]
        start += size
        if running.request.on_token is not None:
            running.loop.call_soon_threadsafe(running.request.on_token, new[0])
        reason = _stop_reason(running, end_ids, stops)
        if reason is not None:
            return reason
    return None


def _stop_reason(running: RunningRequest, end_ids: Sequence[int], stops: StopStrings) -> StopReason | None:
    if running.new_ids[-1] in end_ids:
        return StopReason.END
    sampling = running.request.sampling
    if sampling.stop and stops.reached(running.new_ids, sampling.stop):
        return StopReason.STRING
    if len(running.new_ids) >= running.max_new_tokens:
        return StopReason.CONTEXT if running.max_new_tokens < sampling.max_tokens else StopReason.LENGTH
    return None


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
