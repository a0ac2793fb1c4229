"""Where a reply ends: an end token, its limit, or a stop string.

A stop string is looked for in the last tokens, and only after one that can complete it.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from practicum.engines.local.request import RunningRequest
from practicum.trajectory import StopReason

STOP_WINDOW = 24
"""Tokens decoded to look for a stop string; longer ones are refused."""


class StopStrings:
    """Stop strings in what a tokenizer's ids say."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._alone: dict[int, str] = {}
        """What a token says by itself, of those that have been asked about."""

    def reached(self, new: Sequence[int], stops: Sequence[str]) -> bool:
        """Whether a reply that has just got its last token has come to one of the strings."""
        if not self._can_end(new[-1], stops):
            return False
        tail = self._text(new[-STOP_WINDOW:])
        return any(text in tail for text in stops)

    def _can_end(self, token: int, stops: Sequence[str]) -> bool:
        """Whether one of the strings can end in this token.

        A character of ASCII lies whole within one token; spaces may be gone from a token that is decoded alone.
        """
        if token not in self._alone:
            self._alone[token] = self._text([token])
        alone = self._alone[token]
        return any(not text[-1].isascii() or text[-1].isspace() or text[-1] in alone for text in stops if text)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


def append_tokens(
    row: RunningRequest, ids: Sequence[int], logprobs: Sequence[float], ends: Sequence[int], stops: StopStrings
) -> StopReason | None:
    """Give a row what a burst brought it, up to where it stops. Why it does; None: it goes on."""
    if not row.plain:
        stop = 1  # token by token
    else:
        stop = next((place + 1 for place, token in enumerate(ids) if token in ends), len(ids))
        stop = min(stop, row.limit - len(row.new))
    at = 0
    while at < len(ids):
        new = ids[at : at + stop]
        row.new += new
        row.ids += new
        row.logprobs += logprobs[at : at + stop]
        at += stop
        if row.request.on_token is not None:
            row.loop.call_soon_threadsafe(row.request.on_token, new[0])
        reason = _reason(row, ends, stops)
        if reason is not None:
            return reason
    return None


def _reason(row: RunningRequest, ends: Sequence[int], stops: StopStrings) -> StopReason | None:
    if row.new[-1] in ends:
        return StopReason.END
    sampling = row.request.sampling
    if sampling.stop and stops.reached(row.new, sampling.stop):
        return StopReason.STRING
    if len(row.new) >= row.limit:
        return StopReason.CONTEXT if row.limit < sampling.max_tokens else StopReason.LENGTH
    return None
