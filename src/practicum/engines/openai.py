"""The openai engine: replies from any OpenAI-compatible chat server.

Such a server takes and returns text. The recorded ids are those that our tokenizer gives for that text, and there are
no log-probs: episodes are good for collecting and evaluation, and are refused for policy gradients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from practicum.chat.formats.base import Format
from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request
from practicum.engines.chat_client import ChatClient
from practicum.environment import Action, Message, ToolCall
from practicum.trajectory import ActionSource, StopReason


class OpenAIEngine:
    """Chat completions over HTTP; see `ChatClient` for faults, rate limits and the API key."""

    name = "openai"

    def __init__(self, url: str, model: str, format: Format, renderer: Renderer, timeout: float = 120.0) -> None:
        """`timeout` is in seconds, for each of connecting, sending and waiting for data."""
        self.model = model
        self.format = format
        self.renderer = renderer
        self.client = ChatClient(url, timeout)

    async def generate(self, request: Request) -> Generation:
        text, reason = await self.client.first_choice(self.body(request), self._reply)
        ids = self.renderer.encode_reply(text)
        return Generation(ids if reason is StopReason.END else ids[:-1], None, reason, 0, ActionSource.POLICY)

    def _reply(self, choice: Mapping[str, Any]) -> tuple[str, StopReason]:
        reason = StopReason.LENGTH if choice.get("finish_reason") == "length" else StopReason.END
        return self._text(choice["message"]), reason

    def body(self, request: Request) -> dict[str, Any]:
        """Return the JSON body of a chat completion request."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "messages": api_messages(request.conversation, self.format, bool(request.tools)),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed % 2**31,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k  # not in OpenAI's API; vLLM and others read it, the rest refuse it
        if sampling.min_p:
            body["min_p"] = sampling.min_p
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if request.response_format is not None:
            body["response_format"] = dict(request.response_format)
        if request.tools and self.format.schema_in_template:
            body["tools"] = [dict(tool) for tool in request.tools]
        return body

    def _text(self, message: Mapping[str, Any]) -> str:
        """Return the reply as the format writes it; arguments that are not JSON stay as they are, for it to refuse."""
        content = _without_surrogates(str(message.get("content") or ""))
        calls = []
        for call in message.get("tool_calls") or ():
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            value = _arguments(arguments)
            if value is None:
                text = f'{content}<tool_call>{{"name": {json.dumps(name)}, "arguments": {arguments}}}</tool_call>'
                return _without_surrogates(text)
            calls.append(ToolCall(name, value))
        return self.format.write(Action(calls=tuple(calls), thought=content.strip()), True) if calls else content

    def end_session(self, session: str) -> None:
        return None

    async def close(self) -> None:
        await self.client.close()


def api_messages(conversation: tuple[Message, ...], format: Format, has_tools: bool) -> list[dict[str, Any]]:
    """Return a conversation as the chat API's messages, in which a tool message names the call that it answers."""
    rows: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for index, message in enumerate(conversation):
        row: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "assistant" and format.schema_in_template:
            action = format.parse(message.content, has_tools)
            open_calls = [f"call_{index}_{k}" for k in range(len(action.calls))]
            if action.calls:
                row["content"] = action.thought
                row["tool_calls"] = [
                    {"id": name, "type": "function",
                     "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}}
                    for name, call in zip(open_calls, action.calls, strict=True)
                ]  # fmt: skip
        elif message.role == "tool":
            if open_calls:
                row["tool_call_id"] = open_calls.pop(0)
            else:
                row["role"] = "user"  # an answer to a reply without a call: the API has no tool message for that
        if message.images:
            pictures = [{"type": "image_url", "image_url": {"url": image}} for image in message.images]
            row["content"] = [{"type": "text", "text": message.content}, *pictures]
        rows.append(row)
    return rows


def _arguments(text: Any) -> dict[str, Any] | None:
    """Return the arguments of a call, or None where they are not a JSON object: no call is guessed."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _without_surrogates(text: str) -> str:
    """Return the text with lone surrogates replaced: they have no UTF-8 form, and no tokenizer takes them."""
    return text.encode("utf-8", "replace").decode()
