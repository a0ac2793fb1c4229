"""A wave: waiting requests whose prompts are computed together."""

from __future__ import annotations

from practicum.engines.local.kv_cache import BLOCK_TOKENS
from practicum.engines.local.runner import RunningRequest

PIECE_TOKENS = 512
"""Tokens of a long prompt that are computed between two decode steps of other requests."""


class Wave:
    """Requests are added in their order; a prompt whose next uncached block another one is about to compute waits.

    Of a long prompt only the next piece is computed, so that other requests need not wait for all of it: one such
    prompt per wave, which is the wave's last.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        """Prompt tokens that may still be computed."""
        self.requests: list[RunningRequest] = []
        self.postponed: list[RunningRequest] = []
        self.piece: RunningRequest | None = None
        self._computing: dict[int, RunningRequest] = {}

    @property
    def num_slots(self) -> int:
        """Slots that the requests need, postponed ones included."""
        return len(self.requests) + len(self.postponed) + (self.piece is not None)

    @property
    def is_full(self) -> bool:
        return self.budget <= 0 and bool(self.members)

    @property
    def members(self) -> list[RunningRequest]:
        """The requests to admit."""
        return self.requests if self.piece is None else [*self.requests, self.piece]

    def add(self, one: RunningRequest, in_pieces: bool) -> None:
        """Add a request whose prefix was matched. `in_pieces`: others would wait for a long prompt."""
        length = one.prefix_match.length
        num_tokens = len(one.ids) - 1 - length
        is_long = in_pieces and num_tokens > PIECE_TOKENS
        following = one.hashes[length // BLOCK_TOKENS : length // BLOCK_TOKENS + 1]
        if following and following[0] in self._computing:
            self._computing[following[0]].awaited = True
            self.postponed.append(one)
        elif is_long and self.piece is not None:
            self.postponed.append(one)
        elif is_long:
            self.piece, one.piece_end = one, length + PIECE_TOKENS
            blocks = slice(length // BLOCK_TOKENS, one.piece_end // BLOCK_TOKENS)
            self._computing.update(dict.fromkeys(one.hashes[blocks], one))
            self.budget -= PIECE_TOKENS
        else:
            one.piece_end = None
            self._computing.update(dict.fromkeys(following, one))
            self.budget -= num_tokens
            self.requests.append(one)
