"""Where a reply contains a stop string: looked for in its last tokens, and only after a token that can complete one."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

STOP_WINDOW = 24
"""Tokens decoded to look for a stop string; longer ones are refused."""


class Stops:
    """Stop strings in what a tokenizer's ids say."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._alone: dict[int, str] = {}
        """What a token says by itself, of those that have been asked about."""

    def reached(self, new: Sequence[int], stops: Sequence[str]) -> bool:
        """Whether a reply that has just got its last token has come to one of the strings."""
        return self._can_end(new[-1], stops) and any(text in self._text(new[-STOP_WINDOW:]) for text in stops)

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
