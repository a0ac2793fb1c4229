"""What an API is to the server: how its requests are read and its answers written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from practicum.serving.body import Body
from practicum.serving.errors import APIError
from practicum.serving.service import Event
from practicum.serving.turn import Completion, TurnRequest


@dataclass(frozen=True)
class APIRequest:
    """A request as an API has it: its turns (several only for several prompts) and how the answer is to be written."""

    turns: Sequence[TurnRequest]
    logprobs: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False
    """Whether log-probs name tokens as token_id:N instead of by their text."""
    include_usage: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    """What only one API needs."""

    @property
    def turn(self) -> TurnRequest:
        return self.turns[0]


class Dialect(Protocol):
    """One API."""

    def read(self, body: Body, client: str, tokenize: Tokenize) -> APIRequest:
        """Read a request; an APIError names what is wrong with it."""

    def answer(self, api_request: APIRequest, completions: Sequence[Completion]) -> dict[str, Any]:
        """The body of a whole answer."""

    def stream(self, api_request: APIRequest, events: AsyncIterator[Event]) -> AsyncIterator[str]:
        """The events of a streamed answer as text, up to and with its last one."""

    def error(self, error: APIError) -> dict[str, Any]:
        """The body of an error."""

    def error_event(self, error: APIError) -> str:
        """The event of an error in the middle of a stream."""


class Tokenize(Protocol):
    """The ids of a text under a model's tokenizer, checked ids where they are given as such."""

    def __call__(self, model: str, prompt: str | Sequence[int]) -> tuple[int, ...]: ...


def to_json(value: Any) -> str:
    """Compact JSON; characters stay as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def sse(value: Mapping[str, Any], event: str | None = None) -> str:
    """One server-sent event."""
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {to_json(value)}\n\n"
