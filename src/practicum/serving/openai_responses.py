"""OpenAI's responses API: a list of items in, a list of items out; earlier responses are kept in memory by their id."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from practicum.chat.renderer import Renderer
from practicum.engines.base import MAX_TOP_LOGPROBS, SampledToken
from practicum.environment import ToolCall, Usage
from practicum.serving.body import Body, clean_text
from practicum.serving.dialect import APIRequest, Tokenize, sse, to_json
from practicum.serving.errors import APIError, bad_request
from practicum.serving.openai_fields import (
    MAX_TOKENS,
    logprobs_json,
    parse_arguments,
    read_content,
    read_response_format,
    read_sampling,
    read_tool,
    read_tool_choice,
)
from practicum.serving.service import Event, TurnStarted
from practicum.serving.turn import ChatMessage, Completion, CompletionChoice, Delta, Finish, FunctionCall, TurnRequest

MAX_KEPT = 1000
"""Responses that are kept for `previous_response_id`; the oldest are dropped."""
MAX_KEPT_BYTES = 256 << 20
"""Bytes of JSON of the kept responses with their conversations, at most; a longer one is not kept at all."""
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
"""Entries of `metadata`, and characters of their keys and values: OpenAI's limits."""
HARMLESS = (
    "user", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "include",
    "client_metadata",
)  # fmt: skip
UNSUPPORTED: dict[str, Sequence[Any]] = {
    "background": (False,), "conversation": (), "prompt": (), "max_tool_calls": (), "truncation": ("disabled", "auto"),
    "context_management": ([],), "moderation": (),
}  # fmt: skip
ECHOED: dict[str, Any] = {
    "temperature": 1.0, "top_p": 1.0, "max_output_tokens": None, "instructions": None, "metadata": {},
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "previous_response_id": None, "reasoning": None,
    "text": {"format": {"type": "text"}}, "truncation": "disabled", "user": None, "top_logprobs": 0,
}  # fmt: skip
"""Fields of a request that a response repeats, with what they are where the request does not have them."""
TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")
CUSTOM_PARAMETERS = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""A custom tool takes one text; the model calls it as a function with this parameter."""


class Responses:
    """The dialect of /v1/responses."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[tuple[ChatMessage, ...], dict[str, Any]]] = OrderedDict()
        """Conversation and body of earlier responses, by client and id."""
        self._sizes: dict[tuple[str, str], int] = {}
        """Bytes of each."""
        self._kept_bytes = 0

    def read(self, body: Body, client: str, tokenize: Tokenize) -> APIRequest:
        body.accept(*HARMLESS, "stream_options")
        body.refuse(UNSUPPORTED)
        _check_metadata(body)
        reasoning = body.object("reasoning")
        if reasoning is not None:
            reasoning.accept("summary", "effort", "generate_summary", "context")  # this model has no such setting
            reasoning.finish()
        tools, custom = _read_tools(body)
        earlier = self._earlier(body, client)
        instructions = body.text("instructions")
        new = _read_input(body)
        system = (ChatMessage("system", instructions),) if instructions else ()
        options = body.object("text")
        response_format, parallel = None, body.boolean("parallel_tool_calls", True)
        if options is not None:
            response_format = read_response_format(_chat_format(options.get("format")), "text.format")
            options.refuse({"verbosity": ("medium",)})
            options.finish()
        turn = TurnRequest(
            model=str(body.text("model") or body.require("model")),
            messages=(*system, *earlier, *new),
            tools=tools,
            tool_choice=read_tool_choice(body.get("tool_choice"), "tool_choice", tools, parallel),
            response_format=response_format,
            response_format_param="text.format",
            max_tokens=body.integer("max_output_tokens", 1, MAX_TOKENS),
            top_logprobs=body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or 0,
            stream=body.boolean("stream"),
            **read_sampling(body),
        )
        store = body.boolean("store", True)
        body.finish()
        logprobs = turn.top_logprobs > 0 or "message.output_text.logprobs" in body.list("include")
        echoed = {name: body.values.get(name) or default for name, default in ECHOED.items()}
        more = {"client": client, "store": store, "echoed": echoed, "conversation": (*earlier, *new), "custom": custom}
        return APIRequest([turn], logprobs, more=more)

    def _earlier(self, body: Body, client: str) -> tuple[ChatMessage, ...]:
        """The conversation that a request continues."""
        previous = body.text("previous_response_id")
        if previous is None:
            return ()
        kept = self._kept.get((client, previous))
        if kept is None:
            raise APIError(
                404, f"There is no response '{previous}' here; it may have been dropped.", "previous_response_id",
                "previous_response_not_found",
            )  # fmt: skip
        return kept[0]

    def kept(self, client: str, response_id: str) -> dict[str, Any]:
        """The body of an earlier response."""
        if (client, response_id) not in self._kept:
            raise APIError(404, f"There is no response '{response_id}' here.", "response_id", "response_not_found")
        return self._kept[client, response_id][1]

    def delete(self, client: str, response_id: str) -> None:
        self.kept(client, response_id)
        self._drop((client, response_id))

    def _drop(self, key: tuple[str, str]) -> None:
        del self._kept[key]
        self._kept_bytes -= self._sizes.pop(key)

    def _keep(self, api_request: APIRequest, response: dict[str, Any], choice: CompletionChoice) -> None:
        if api_request.more["store"]:
            conversation = (*api_request.more["conversation"], choice.message)
            key = (api_request.more["client"], response["id"])
            if key in self._kept:  # a repeated request of an episode
                self._drop(key)
            self._kept[key] = (conversation, response)
            self._sizes[key] = len(to_json(response).encode()) + sum(map(_num_bytes, conversation))
            self._kept_bytes += self._sizes[key]
            while len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES:
                self._drop(next(iter(self._kept)))

    def answer(self, api_request: APIRequest, completions: Sequence[Completion]) -> dict[str, Any]:
        [completion] = completions
        [choice] = completion.choices
        head = _head(api_request, completion.id, completion.created, completion.model)
        items = [
            _item(api_request, completion.id, index, part, _logprobs(api_request, choice.tokens, completion.renderer))
            for index, part in enumerate(_items(choice))
        ]
        assert choice.finish is not None, "the reply has ended"
        response = _ended(head, items, choice.finish, completion.usage)
        self._keep(api_request, response, choice)
        return response

    async def stream(self, api_request: APIRequest, events: AsyncIterator[Event]) -> AsyncIterator[str]:
        writer: _ItemWriter | None = None
        async for event in events:
            if isinstance(event, TurnStarted):
                writer = _ItemWriter(api_request, event, self)
                for text in writer.begin():
                    yield text
            elif writer is not None and isinstance(event, Finish):
                for text in writer.end(event):
                    yield text
            elif writer is not None and not isinstance(event, Finish):
                for text in writer.write(event.parts, event.tokens):
                    yield text

    def error(self, error: APIError) -> dict[str, Any]:
        return error.openai()

    def error_event(self, error: APIError) -> str:
        value = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return sse({**value, "sequence_number": 0}, "error")


@dataclass
class _ItemWriter:
    """Writes the events of one stream."""

    api_request: APIRequest
    started: TurnStarted
    dialect: Responses
    number: int = 0
    """Sequence number of the next event."""
    items: list[dict[str, Any]] = field(default_factory=list)
    text: str | None = None
    """The text of the message that is open; None where none is."""
    tokens: list[SampledToken] = field(default_factory=list)
    choice: CompletionChoice = field(default_factory=lambda: CompletionChoice(0))

    def _event(self, kind: str, **fields: Any) -> str:
        self.number += 1
        return sse({"type": kind, "sequence_number": self.number - 1, **fields}, kind)

    @property
    def head(self) -> dict[str, Any]:
        return _head(self.api_request, self.started.id, self.started.created, self.started.model)

    def begin(self) -> list[str]:
        return [self._event(f"response.{kind}", response=self.head) for kind in ("created", "in_progress")]

    def write(self, parts: Sequence[str | FunctionCall], tokens: Sequence[SampledToken]) -> list[str]:
        texts = []
        self.tokens += tokens
        for part in parts:
            if isinstance(part, FunctionCall):
                texts += [*self._close_message(), *self._call(part)]
            else:
                texts += self._text(part)
            self.choice.parts.append(part)
        self.choice.tokens += tokens
        return texts

    def _text(self, text: str) -> list[str]:
        texts = []
        position = {"output_index": len(self.items), "content_index": 0, "item_id": self._item("")["id"]}
        if self.text is None:
            self.text = ""
            item = {**self._item(""), "status": "in_progress", "content": []}
            texts.append(self._event("response.output_item.added", output_index=len(self.items), item=item))
            empty = self._item("")["content"][0]
            texts.append(self._event("response.content_part.added", **position, part=empty))
        self.text += text
        logprobs, self.tokens = self._logprobs(self.tokens), []
        return [*texts, self._event("response.output_text.delta", **position, delta=text, logprobs=logprobs)]

    def _logprobs(self, tokens: Sequence[SampledToken]) -> list[dict[str, Any]]:
        return _logprobs(self.api_request, tokens, self.started.renderer)

    def _item(self, part: str | FunctionCall) -> dict[str, Any]:
        logprobs = self._logprobs(self.choice.tokens) if part else []
        return _item(self.api_request, self.started.id, len(self.items), part, logprobs)

    def _close_message(self) -> list[str]:
        if self.text is None:
            return []
        item = self._item(self.text)
        position = {"output_index": len(self.items), "content_index": 0, "item_id": item["id"]}
        part = item["content"][0]
        texts = [
            self._event("response.output_text.done", **position, text=self.text, logprobs=part["logprobs"]),
            self._event("response.content_part.done", **position, part=part),
            self._event("response.output_item.done", output_index=len(self.items), item=item),
        ]
        self.items.append(item)
        self.text = None
        return texts

    def _call(self, call: FunctionCall) -> list[str]:
        item = self._item(call)
        key, kind = ("input", "custom_tool_call_input") if item["type"] == "custom_tool_call" else (
            "arguments", "function_call_arguments")  # fmt: skip
        position = {"output_index": len(self.items), "item_id": item["id"]}
        opened = {**item, "status": "in_progress", key: ""}
        self.items.append(item)
        return [
            self._event("response.output_item.added", output_index=position["output_index"], item=opened),
            self._event(f"response.{kind}.delta", **position, delta=item[key]),
            self._event(f"response.{kind}.done", **position, name=call.name, **{key: item[key]}),
            self._event("response.output_item.done", output_index=position["output_index"], item=item),
        ]

    def end(self, finish: Finish) -> list[str]:
        texts = [] if self.items or self.text is not None else self._text("")
        texts += self._close_message()
        response = _ended(self.head, self.items, finish, finish.usage)
        self.dialect._keep(self.api_request, response, _joined(self.choice))
        return [*texts, self._event(f"response.{response['status']}", response=response)]


def _logprobs(api_request: APIRequest, tokens: Sequence[SampledToken], renderer: Renderer) -> list[dict[str, Any]]:
    return logprobs_json(renderer, tokens) if api_request.logprobs else []


def _joined(choice: CompletionChoice) -> CompletionChoice:
    """A choice whose adjacent texts are one."""
    result = CompletionChoice(choice.index)
    result.add(Delta(choice.index, tuple(choice.parts)))
    return result


def _items(choice: CompletionChoice) -> list[str | FunctionCall]:
    """The parts of a choice, each an item; a reply without any is one empty message."""
    return choice.parts or [""]


def _head(api_request: APIRequest, name: str, created: int, model: str) -> dict[str, Any]:
    return {
        "id": f"resp_{name}", "object": "response", "created_at": created, "status": "in_progress", "model": model,
        "output": [], "error": None, "incomplete_details": None, "usage": None, "store": api_request.more["store"],
        **api_request.more["echoed"],
    }  # fmt: skip


def _ended(head: dict[str, Any], items: Sequence[Any], finish: Finish, usage: Usage) -> dict[str, Any]:
    cut = finish.reason == "length"
    status = "incomplete" if cut else "completed"
    output = list(items)
    if cut and output and output[-1]["type"] == "message":
        output[-1] = {**output[-1], "status": "incomplete"}
    return {
        **head,
        "status": status,
        "output": output,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }


def _item(
    api_request: APIRequest, name: str, index: int, part: str | FunctionCall, logprobs: list[dict[str, Any]]
) -> dict[str, Any]:
    """An item of the output: a message, or a call of a function or of a custom tool."""
    if isinstance(part, str):
        content = {"type": "output_text", "text": part, "annotations": [], "logprobs": logprobs}
        head = {"id": f"msg_{name}_{index}", "type": "message", "role": "assistant", "status": "completed"}
        return {**head, "content": [content]}
    if part.name in api_request.more["custom"]:
        value = json.loads(part.arguments).get("input", "")
        head = {"id": f"ctc_{name}_{index}", "type": "custom_tool_call", "status": "completed"}
        return {**head, "call_id": part.id, "name": part.name, "input": value if isinstance(value, str) else ""}
    head = {"id": f"fc_{name}_{index}", "type": "function_call", "status": "completed"}
    return {**head, "call_id": part.id, "name": part.name, "arguments": part.arguments}


def _read_tools(body: Body) -> tuple[tuple[Mapping[str, Any], ...], frozenset[str]]:
    """The tools, and the names of those that are custom: they take a text."""
    tools, custom = [], set()
    for tool in body.objects("tools"):
        kind = tool.require("type")
        if kind == "custom":
            tool.accept("format", "type")
            values = {**tool.values, "parameters": CUSTOM_PARAMETERS}
            tools.append(read_tool(Body(values, tool.path)))
            custom.add(tools[-1]["function"]["name"])
        elif kind == "function":
            tools.append(read_tool(tool))
            tool.finish()
        else:
            raise bad_request(
                f"'{tool.name('type')}': tools of type {kind!r} are not supported.", tool.name("type"),
                "unsupported_value",
            )  # fmt: skip
    return tuple(tools), frozenset(custom)


def _num_bytes(message: ChatMessage) -> int:
    calls = sum(len(call.name) + len(to_json(dict(call.arguments)).encode()) for call in message.calls)
    return len(message.text.encode()) + sum(map(len, message.images)) + calls


def _check_metadata(body: Body) -> None:
    """Refuse metadata beyond OpenAI's limits: it is kept and repeated."""
    metadata = body.object("metadata")
    values = {} if metadata is None else metadata.values
    if len(values) > MAX_METADATA:
        raise bad_request(f"'metadata' may have at most {MAX_METADATA} entries.", "metadata")
    for key, value in values.items():
        if len(key) > MAX_METADATA_KEY or not isinstance(value, str) or len(value) > MAX_METADATA_VALUE:
            raise bad_request(
                f"'metadata' must have keys of at most {MAX_METADATA_KEY} characters and strings of at most "
                f"{MAX_METADATA_VALUE} as values.", "metadata",
            )  # fmt: skip


def _chat_format(value: Any) -> Any:
    """`text.format` as the chat API has it: the schema one level deeper."""
    if isinstance(value, dict) and value.get("type") == "json_schema":
        if not isinstance(value.get("schema"), dict):
            raise bad_request("'text.format.schema' must be an object.", "text.format.schema")
        return {"type": "json_schema", "json_schema": {"schema": value.get("schema")}}
    return value


def _read_input(body: Body) -> tuple[ChatMessage, ...]:
    value = body.require("input")
    if isinstance(value, str):
        return (ChatMessage("user", clean_text(value)),)
    if not isinstance(value, list) or not value:
        raise bad_request("'input' must be a string or a list of items.", "input", "invalid_type")
    messages: list[ChatMessage] = []
    names: dict[str, str] = {}
    for item in body.objects("input"):
        kind = item.get("type") or "message"
        if kind == "message":
            _add_message(messages, _read_message(item))
        elif kind in ("function_call", "custom_tool_call"):
            _add_call(messages, _read_call(item, kind, names))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            name = names.get(item.text("call_id") or "", "tool")
            messages.append(ChatMessage("tool", read_content(item, "output", TEXT_PARTS), (), name))
        elif kind != "reasoning":
            raise bad_request(
                f"'{item.name('type')}': items of type {kind!r} are not supported.", item.name("type"),
                "unsupported_value",
            )  # fmt: skip
    if not messages:
        raise bad_request("'input' has no message.", "input")
    return tuple(messages)


def _read_message(item: Body) -> ChatMessage:
    role = item.require("role")
    if role not in ("system", "developer", "user", "assistant"):
        raise bad_request(f"'{item.name('role')}' is no role.", item.name("role"), "unsupported_value")
    return ChatMessage("system" if role == "developer" else role, read_content(item, "content", TEXT_PARTS))


def _read_call(item: Body, kind: str, names: dict[str, str]) -> ToolCall:
    name = item.text("name") or ""
    names[item.text("call_id") or ""] = name
    if kind == "custom_tool_call":
        return ToolCall(name, {"input": item.text("input") or ""})
    return ToolCall(name, parse_arguments(item.get("arguments"), item.name("arguments")))


def _add_message(messages: list[ChatMessage], message: ChatMessage) -> None:
    """Add a message; one of the assistant behind another is part of the same reply, such as a text after a call."""
    if message.role == "assistant" and messages and messages[-1].role == "assistant":
        last = messages.pop()
        messages.append(ChatMessage("assistant", last.text + message.text, last.calls))
    else:
        messages.append(message)


def _add_call(messages: list[ChatMessage], call: ToolCall) -> None:
    """Add a call to the assistant's message before it: the items of one reply are one message."""
    if messages and messages[-1].role == "assistant":
        last = messages.pop()
        messages.append(ChatMessage("assistant", last.text, (*last.calls, call)))
    else:
        messages.append(ChatMessage("assistant", "", (call,)))
