"""Reply formats: how an action is written as text, and read back strictly.

A format never guesses. A reply that it cannot read comes back as an action with `error` set to one
sentence that the agent is shown; no call is ever made of a broken reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from practicum.environment import Action, Message


class Format(Protocol):
    """One way of writing actions."""

    name: str
    stop: tuple[str, ...]
    schema_in_template: bool
    """Whether the chat template lists the tools (else `instructions` does)."""

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str: ...
    def parse(self, text: str, has_tools: bool) -> Action: ...
    def write(self, action: Action, has_tools: bool) -> str: ...
    def observe(self, name: str, text: str) -> Message: ...
