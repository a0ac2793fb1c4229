"""Where a reply ends: at an end id, its limit, or a stop string.

A stop string is searched for in the last tokens, and only after a token that can complete it.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from practicum.engines.local.request import RunningRequest
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
