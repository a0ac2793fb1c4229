"""A model that says what a test wants it to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from practicum.environment import Action, Message, Reply, Usage
from practicum.errors import EngineError


class ScriptedModel:
    """A `ChatModel` that says its texts in their order, the last one again and again; without any it fails.

    `asked` has the messages, the response format and the seed of every call.
    """

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.asked: list[tuple[Sequence[Message], Any, int | None]] = []

    async def reply(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        response_format: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> Reply:
        self.asked.append((messages, response_format, seed))
        if not self.texts:
            raise EngineError("no server")
        text = self.texts[min(len(self.asked), len(self.texts)) - 1]
        return Reply(text, Action(content=text), (), None, Usage(10, 3), "end")
