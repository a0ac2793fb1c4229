"""Reply formats: how an action is written as text, and read back strictly.

A format never guesses. A reply that it cannot read comes back as an action with `error` set to one
sentence that the agent is shown; a reply that does not parse makes no call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from practicum.environment import Action, Message


class Format(Protocol):
    """One way of writing actions as replies. The model reads the errors of `parse`: they are part of episodes."""

    name: str
    stop: tuple[str, ...]
    """Stop strings that end a reply."""
    schema_in_template: bool
    """Whether the chat template lists the tools; otherwise `instructions` does."""

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return what the system message says about the format; "" where the chat template says it."""

    def parse(self, text: str, has_tools: bool) -> Action:
        """Return the action of a reply; one that does not parse has `error` set and makes no call."""

    def write(self, action: Action, has_tools: bool) -> str:
        """Return the reply that `parse` reads as this action."""

    def observe(self, name: str, text: str) -> Message:
        """Return the message with which a tool of that name answers."""
