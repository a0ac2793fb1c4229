"""Anthropic's messages API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from practicum.environment import ToolCall, Usage
from practicum.serving.body import Body
from practicum.serving.dialect import APIRequest, Tokenize, sse
from practicum.serving.errors import APIError, bad_request
from practicum.serving.openai_fields import MAX_STOPS, MAX_TOKENS, read_content, read_response_format, read_tool
from practicum.serving.service import Event, TurnStarted
from practicum.serving.turn import (  # fmt: skip
    AUTO,
    FUNCTION,
    NONE,
    REQUIRED,
    ChatMessage,
    Completion,
    Finish,
    FunctionCall,
    ToolChoice,
    TurnRequest,
)

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
CHOICES = {"auto": AUTO, "any": REQUIRED, "tool": FUNCTION, "none": NONE}
UNSUPPORTED: dict[str, Sequence[Any]] = {
    "thinking": ({"type": "disabled"},), "mcp_servers": ([],), "container": (), "context_management": ({},),
}  # fmt: skip


class Messages:
    """The dialect of /v1/messages."""

    def read(self, body: Body, client: str, tokenize: Tokenize) -> APIRequest:
        body.require("max_tokens")
        turn = self.read_turn(body)
        body.finish()
        return APIRequest([turn])

    def read_turn(self, body: Body) -> TurnRequest:
        """The turn of a request for a message, or for the count of its tokens."""
        body.accept("metadata", "service_tier", "cache_control", "inference_geo", "betas", "speed", "user_profile_id")
        body.refuse(UNSUPPORTED)
        system = read_content(body, "system", ("text",))
        tools = _read_tools(body)
        messages = _read_messages(body)
        top_p = body.number("top_p", 0.0, 1.0)
        return TurnRequest(
            model=str(body.text("model") or body.require("model")),
            messages=(*((ChatMessage("system", system),) if system else ()), *messages),
            tools=tools,
            tool_choice=_read_tool_choice(body, tools),
            response_format=_read_output_format(body),
            temperature=body.number("temperature", 0.0, 1.0),
            top_p=top_p or None,
            top_k=body.integer("top_k", 0, 2**31),
            max_tokens=body.integer("max_tokens", 1, MAX_TOKENS),
            stop=body.texts("stop_sequences", MAX_STOPS),
            stream=body.boolean("stream"),
        )

    def answer(self, api_request: APIRequest, completions: Sequence[Completion]) -> dict[str, Any]:
        [completion] = completions
        [choice] = completion.choices
        assert choice.finish is not None, "the reply has ended"
        return {
            **_head(completion.id, completion.model, completion.usage),
            "content": [_block(part) for part in choice.parts],
            **_stop(choice.finish),
        }

    async def stream(self, api_request: APIRequest, events: AsyncIterator[Event]) -> AsyncIterator[str]:
        blocks = _Blocks()
        async for event in events:
            if isinstance(event, TurnStarted):
                empty: dict[str, Any] = {"stop_reason": None, "stop_sequence": None, "content": []}
                head = _head(event.id, event.model, Usage(len(event.prompt_ids), 0))
                yield sse({"type": "message_start", "message": {**head, **empty}}, "message_start")
                yield sse({"type": "ping"}, "ping")
            elif isinstance(event, Finish):
                for text in blocks.close():
                    yield text
                usage = _usage(event.usage)
                yield sse({"type": "message_delta", "delta": _stop(event), "usage": usage}, "message_delta")
                yield sse({"type": "message_stop"}, "message_stop")
            else:
                for part in event.parts:
                    for text in blocks.write(part):
                        yield text

    def error(self, error: APIError) -> dict[str, Any]:
        return error.anthropic()

    def error_event(self, error: APIError) -> str:
        return sse(error.anthropic(), "error")


class _Blocks:
    """Writes content blocks: adjacent texts are one block, every call is one."""

    def __init__(self) -> None:
        self.index = 0
        self.open = False

    def write(self, part: str | FunctionCall) -> list[str]:
        if isinstance(part, str):
            started = [] if self.open else [self._start({"type": "text", "text": ""})]
            self.open = True
            return [*started, self._delta({"type": "text_delta", "text": part})]
        texts = self.close()
        texts.append(self._start({"type": "tool_use", "id": part.id, "name": part.name, "input": {}}))
        texts.append(self._delta({"type": "input_json_delta", "partial_json": part.arguments}))
        self.open = True
        return [*texts, *self.close()]

    def close(self) -> list[str]:
        if not self.open:
            return []
        self.open = False
        self.index += 1
        return [sse({"type": "content_block_stop", "index": self.index - 1}, "content_block_stop")]

    def _start(self, block: Mapping[str, Any]) -> str:
        value = {"type": "content_block_start", "index": self.index, "content_block": block}
        return sse(value, "content_block_start")

    def _delta(self, delta: Mapping[str, Any]) -> str:
        return sse({"type": "content_block_delta", "index": self.index, "delta": delta}, "content_block_delta")


def _head(name: str, model: str, usage: Usage) -> dict[str, Any]:
    return {"id": f"msg_{name}", "type": "message", "role": "assistant", "model": model, "usage": _usage(usage)}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _stop(finish: Finish) -> dict[str, Any]:
    if finish.stop_string is not None and finish.reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": finish.stop_string}
    return {"stop_reason": STOP_REASONS[finish.reason], "stop_sequence": None}


def _block(part: str | FunctionCall) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "tool_use", "id": part.id, "name": part.name, "input": json.loads(part.arguments)}


def _read_tools(body: Body) -> tuple[Mapping[str, Any], ...]:
    tools = []
    for tool in body.objects("tools"):
        if (tool.get("type") or "custom") != "custom":
            raise bad_request(
                f"'{tool.name('type')}': only tools of your own are supported.", tool.name("type"), "unsupported_value"
            )
        values = {"name": tool.get("name"), "description": tool.get("description")}
        tools.append(read_tool(Body({**values, "parameters": tool.get("input_schema")}, tool.path)))
        tool.accept("cache_control", "strict", "eager_input_streaming", "defer_loading", "input_examples")
        tool.accept("allowed_callers")
        tool.finish()
    return tuple(tools)


def _read_tool_choice(body: Body, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    choice = body.object("tool_choice")
    if choice is None:
        return ToolChoice()
    kind = choice.require("type")
    name = choice.text("name") or ""
    parallel = not choice.boolean("disable_parallel_tool_use")
    choice.finish()
    if kind not in CHOICES:
        raise bad_request("'tool_choice.type' must be auto, any, tool or none.", "tool_choice.type")
    names = [tool["function"]["name"] for tool in tools]
    if kind in ("any", "tool") and not names:
        raise bad_request("'tool_choice' asks for a tool, and there are none.", "tool_choice")
    if kind == "tool" and name not in names:
        raise bad_request("'tool_choice.name' is not among the tools.", "tool_choice.name")
    return ToolChoice(CHOICES[kind], name if kind == "tool" else "", parallel)


def _read_output_format(body: Body) -> Mapping[str, Any] | None:
    """`output_config.format` or `output_format`: a JSON schema."""
    config, value = body.object("output_config"), body.get("output_format")
    if config is not None:
        value = config.get("format") or value
        config.accept("effort")
        config.finish()
    if isinstance(value, dict) and value.get("type") == "json_schema":
        value = {"type": "json_schema", "json_schema": {"schema": value.get("schema")}}
    return read_response_format(value, "output_config.format")


def _read_messages(body: Body) -> list[ChatMessage]:
    body.require("messages")
    messages: list[ChatMessage] = []
    names: dict[str, str] = {}
    for message in body.objects("messages"):
        role = message.require("role")
        if role not in ("user", "assistant", "system"):
            raise bad_request(f"'{message.name('role')}' must be user or assistant.", message.name("role"))
        content = message.require("content")
        if isinstance(content, str):
            messages.append(ChatMessage(role, read_content(message, "content", ())))
        else:
            messages += _read_blocks(message, role, names)
        message.finish()
    if not messages:
        raise bad_request("'messages' must have at least one message.", "messages")
    return messages


def _read_blocks(message: Body, role: str, names: dict[str, str]) -> list[ChatMessage]:
    """The messages of a list of blocks: results of tools are messages of their own, before the user's text."""
    texts: list[str] = []
    calls: list[ToolCall] = []
    results: list[ChatMessage] = []
    for block in message.objects("content"):
        kind = block.require("type")
        if kind == "text":
            texts.append(block.text("text") or "")
        elif kind == "tool_use" and role == "assistant":
            arguments = block.object("input")
            names[block.text("id") or ""] = block.text("name") or ""
            calls.append(ToolCall(block.text("name") or "", arguments.values if arguments else {}))
        elif kind == "tool_result" and role == "user":
            name = names.get(block.text("tool_use_id") or "", "tool")
            results.append(ChatMessage("tool", read_content(block, "content", ("text",)), (), name))
        elif kind not in ("thinking", "redacted_thinking"):
            raise bad_request(
                f"'{block.name('type')}': blocks of type {kind!r} are not supported.", block.name("type"),
                "unsupported_value",
            )  # fmt: skip
    if not texts and not calls and results:
        return results
    joint = "" if role == "assistant" else "\n"  # an assistant's blocks are those of one reply
    return [*results, ChatMessage(role, joint.join(texts), tuple(calls))]
