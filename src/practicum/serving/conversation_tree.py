"""The conversations of one external agent as a tree of model calls, and where a new request belongs in it.

An agent sends the whole conversation at every call. A request whose messages continue a recorded reply is answered on
the ids that are held, plus the ids of what is new: nothing that was sampled is rendered again. Messages are compared by
role, stripped text and parsed tool arguments, system messages and tools apart. A request that changes the past opens a
branch, with a reason in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from practicum.chat.renderer import Renderer, split_reasoning
from practicum.engines.base import Generation
from practicum.serving.service import render
from practicum.serving.turn import ChatMessage, template_messages
from practicum.task import canonical_json
from practicum.trajectory import SAME_PROMPT, Span

Key = tuple[str, ...]
NO_REPLY = ChatMessage("assistant", "")


@dataclass(frozen=True)
class ChatHistory:
    """The messages of a request: the system message, the tools, and the turns of user, assistant and tools."""

    system: tuple[ChatMessage, ...]
    messages: tuple[ChatMessage, ...]
    tools: tuple[Mapping[str, Any], ...]

    @classmethod
    def from_messages(cls, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> ChatHistory:
        count = next((index for index, message in enumerate(messages) if message.role != "system"), len(messages))
        return cls(tuple(messages[:count]), tuple(messages[count:]), tuple(tools))

    @property
    def system_key(self) -> tuple[Key, ...]:
        return tuple(message.key for message in self.system)

    @property
    def tools_key(self) -> str:
        return canonical_json([dict(tool) for tool in self.tools])

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(message.key for message in self.messages)


@dataclass(eq=False)
class ModelCall:
    """One recorded reply. `number` is the order of the requests; `spans` are those of the prompt that are new."""

    number: int
    role: str
    parent: ModelCall | None
    conversation: ChatHistory
    new: tuple[ChatMessage, ...]
    """The messages that the prompt adds to the parent's reply, or all of them."""
    spans: tuple[Span, ...]
    seed: int
    reason: str
    choice: int = 0
    info: dict[str, Any] = field(default_factory=dict)
    reply: ChatMessage = NO_REPLY
    generation: Generation | None = None
    response_id: str = ""
    children: list[ModelCall] = field(default_factory=list)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the prompt and the reply."""
        own = tuple(token for span in self.spans for token in span.ids)
        before = self.parent.ids if self.parent is not None else ()
        return (*before, *own, *(self.generation.ids if self.generation is not None else ()))

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of the conversation up to and with the reply."""
        return (*self.conversation.keys, self.reply.key)


@dataclass(frozen=True)
class BranchPoint:
    """Where a request belongs: the reply that it continues, what is new, and why it opens a branch, if it does."""

    parent: ModelCall | None
    new: tuple[ChatMessage, ...]
    spans: tuple[Span, ...]
    reason: str
    system_changed: bool = False


class ConversationTree:
    """The calls of one role."""

    def __init__(self, renderer: Renderer, keep_system: bool = False) -> None:
        """With `keep_system`, a conversation goes on under the system messages and tools that it began with."""
        self.renderer, self.keep_system = renderer, keep_system
        self.calls: list[ModelCall] = []
        self._by_keys: dict[tuple[Any, ...], ModelCall] = {}

    def add(self, call: ModelCall) -> None:
        self.calls.append(call)
        if call.parent is not None:
            call.parent.children.append(call)
        start = call.conversation
        self._by_keys[self._start_key(start), call.keys] = call

    def _start_key(self, conversation: ChatHistory) -> Any:
        return None if self.keep_system else (conversation.system_key, conversation.tools_key)

    def find_branch_point(self, conversation: ChatHistory) -> BranchPoint:
        """Find where a request belongs, and render what is new."""
        parent = self._parent(conversation)
        reason = self._reason(conversation, parent)
        if parent is None:
            spans = render(
                self.renderer, template_messages((*conversation.system, *conversation.messages)), conversation.tools
            )
            return BranchPoint(None, (*conversation.system, *conversation.messages), spans, reason)
        new = conversation.messages[len(parent.keys) :]
        spans = self.renderer.extend(parent.ids, template_messages(new))
        began = parent.conversation
        changed = (began.system_key, began.tools_key) != (conversation.system_key, conversation.tools_key)
        return BranchPoint(parent, new, spans, reason, changed)

    def _parent(self, conversation: ChatHistory) -> ModelCall | None:
        """The longest recorded conversation that the request goes on from."""
        start, keys = self._start_key(conversation), conversation.keys
        for length in range(len(keys) - 1, 0, -1):
            if keys[length - 1][0] == "assistant" and (start, keys[:length]) in self._by_keys:
                return self._by_keys[start, keys[:length]]
        return None

    def _reason(self, conversation: ChatHistory, parent: ModelCall | None) -> str:
        """Why a request does not go on from the role's last call; "" where it does, or is the first."""
        if not self.calls or (parent is not None and parent.response_id == self.calls[-1].response_id):
            return ""
        start, keys = self._start_key(conversation), conversation.keys
        siblings = [
            call for call in self.calls if call.parent is parent and self._start_key(call.conversation) == start
        ]
        if any(call.conversation.keys == keys for call in siblings):
            return SAME_PROMPT
        for call in reversed(siblings):
            length = len(call.conversation.keys)
            if keys[:length] == call.conversation.keys and len(keys) > length and keys[length][0] == "assistant":
                return _changed_reply(call, conversation.messages[length])
        if parent is None and any(call.keys == keys[: len(call.keys)] for call in self.calls):
            same_system = any(call.conversation.system_key == conversation.system_key for call in self.calls)
            return "new tools" if same_system else "new system"
        recorded_keys = {key for call in self.calls for key in call.keys}
        rest = keys[len(parent.keys) :] if parent is not None else keys
        if any(key in recorded_keys for key in rest):
            return "compacted"
        return "new conversation" if parent is None else f"other messages after turn {parent.number}"


def _changed_reply(call: ModelCall, sent: ChatMessage) -> str:
    """How a reply that comes back differs from the one that was given."""
    divided = split_reasoning(call.reply.text)
    if divided is not None and divided[0] and divided[1].strip() == sent.text.strip():
        return "dropped reasoning"
    return "edited reply"
