"""One turn, whatever API it was asked through: the request, the pieces of the reply as they come, the whole reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from practicum.chat.formats.hermes import HermesFormat
from practicum.chat.renderer import Renderer
from practicum.engines.base import SampledToken
from practicum.environment import Action, Message, ToolCall, Usage
from practicum.task import canonical_json
from practicum.trajectory import StopReason

AUTO, NONE, REQUIRED = "auto", "none", "required"
"""Values of `ToolChoice.mode`; besides them there is `FUNCTION`, one named tool."""
FUNCTION = "function"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a request. `calls` are those of an assistant; `name` is the tool's, on a tool message."""

    role: str
    text: str
    calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    images: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """What two messages are compared by: role, stripped text, parsed arguments."""
        calls = (canonical_json([call.name, dict(call.arguments)]) for call in self.calls)
        return (self.role, self.text.strip(), *self.images, *calls)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the reply may, must or must not call a tool."""

    mode: str = AUTO
    name: str = ""
    parallel: bool = True
    """Whether a reply may have more than one call."""


@dataclass(frozen=True)
class TurnRequest:
    """What a client asks for: messages with tools, or a prompt as ids."""

    model: str
    messages: tuple[ChatMessage, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    """The prompt itself, of a request without messages."""
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    response_format: Mapping[str, Any] | None = None
    """As in the chat completions API: {"type": "json_object"} or a JSON schema."""
    response_format_param: str = "response_format"
    """The field of the request that the response format comes from."""
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    top_logprobs: int = 0
    stream: bool = False
    client: str = ""
    """Whose request it is; the queue is fair between clients."""
    body_hash: str = ""
    """The request's body, by its hash."""
    is_retry: bool = False
    """Whether the client says that it repeats an earlier request."""

    @property
    def may_call(self) -> bool:
        """Whether tool calls in the reply are read as such."""
        return bool(self.tools) and self.tool_choice.mode != NONE

    @property
    def num_characters(self) -> int:
        """About how long the prompt's text is: messages, calls and tools."""
        calls = sum(len(str(call.arguments)) for message in self.messages for call in message.calls)
        return calls + sum(len(message.text) for message in self.messages) + sum(len(str(tool)) for tool in self.tools)

    @property
    def requested_sampling(self) -> dict[str, Any]:
        """The sampling parameters that the client named."""
        names = ("temperature", "top_p", "top_k", "max_tokens", "seed")
        values = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {**values, **({"stop": list(self.stop)} if self.stop else {}), **({"n": self.n} if self.n > 1 else {})}


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A tool call of a reply; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str

    @property
    def parsed(self) -> ToolCall:
        return ToolCall(self.name, json.loads(self.arguments))


@dataclass(frozen=True, slots=True)
class Delta:
    """What is new in one choice: text, tool calls, or tokens whose text is not yet certain. `parts` are in order."""

    index: int
    parts: tuple[str | FunctionCall, ...] = ()
    tokens: tuple[SampledToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of one choice."""

    index: int
    reason: str
    """stop, length or tool_calls."""
    stop_string: str | None
    usage: Usage
    stop_reason: StopReason = StopReason.END
    policy_version: int = 0


@dataclass
class CompletionChoice:
    """One reply: its deltas, joined."""

    index: int
    parts: list[str | FunctionCall] = field(default_factory=list)
    tokens: list[SampledToken] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, delta: Delta) -> None:
        self.tokens.extend(delta.tokens)
        for part in delta.parts:
            if isinstance(part, str) and self.parts and isinstance(last := self.parts[-1], str):
                self.parts[-1] = last + part
            else:
                self.parts.append(part)

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def calls(self) -> list[FunctionCall]:
        return [part for part in self.parts if isinstance(part, FunctionCall)]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def message(self) -> ChatMessage:
        """The reply as a client will send it back."""
        return ChatMessage("assistant", self.text, tuple(call.parsed for call in self.calls))


@dataclass(frozen=True)
class Completion:
    """All choices of a turn."""

    id: str
    model: str
    created: int
    prompt_ids: tuple[int, ...]
    cached_tokens: int
    fingerprint: str
    renderer: Renderer
    choices: Sequence[CompletionChoice]

    @property
    def usage(self) -> Usage:
        sampled = sum(choice.finish.usage.completion_tokens for choice in self.choices if choice.finish)
        return Usage(len(self.prompt_ids), sampled, self.cached_tokens)


def template_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Messages as the renderer takes them: the calls of an assistant are written into its text, as Hermes models do."""
    result = []
    for message in messages:
        text = message.text
        if message.calls:
            text = HermesFormat().write(Action(calls=message.calls, thought=text.strip()), True)
        result.append(Message(message.role, text, message.name, message.images))
    return tuple(result)
