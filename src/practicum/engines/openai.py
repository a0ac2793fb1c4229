"""Replies from any OpenAI-compatible chat server.

Such a server takes and gives text, so the ids kept are our tokenizer's own for that text and there
are no log-probs: good for collecting and examining, refused for policy gradients.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from practicum.chat.formats.base import Format
from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request
from practicum.environment import Action, Message, ToolCall
from practicum.errors import EngineError
from practicum.trajectory import ActionSource, StopReason
from practicum.utils.threads import in_thread

RETRY_SECONDS = (0.5, 2.0)


class OpenAIEngine:
    """Chat completions over HTTP. The key, if one is needed, comes from OPENAI_API_KEY."""

    name = "openai"

    def __init__(self, url: str, model: str, format: Format, renderer: Renderer, timeout: float = 120.0) -> None:
        self.url = url.rstrip("/") + "/chat/completions"
        self.model = model
        self.format = format
        self.renderer = renderer
        self.timeout = timeout

    async def generate(self, request: Request) -> Generation:
        body = self.body(request)
        answer = await self._post(body)
        try:
            choice = answer["choices"][0]
            text = self._text(choice["message"])
            reason = StopReason.LENGTH if choice.get("finish_reason") == "length" else StopReason.END
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{self.url} answered without a usable choice ({type(error).__name__}: {error})"
            ) from None
        ids = self.renderer.encode_reply(text)
        return Generation(ids if reason is StopReason.END else ids[:-1], None, reason, 0, ActionSource.POLICY)

    def body(self, request: Request) -> dict[str, Any]:
        """The request as the server wants it."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "messages": wire_messages(request.conversation, self.format, bool(request.tools)),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed % 2**31,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k  # not in the original API; vLLM and others read it, the rest refuse it
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if request.tools and self.format.schema_in_template:
            body["tools"] = [dict(tool) for tool in request.tools]
        return body

    def _text(self, message: Mapping[str, Any]) -> str:
        """The reply as the format writes it; arguments that are not JSON stay as they are, for the format to refuse."""
        content = str(message.get("content") or "")
        calls = []
        for call in message.get("tool_calls") or ():
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            value = _arguments(arguments)
            if value is None:
                return f'{content}<tool_call>{{"name": {json.dumps(name)}, "arguments": {arguments}}}</tool_call>'
            calls.append(ToolCall(name, value))
        return self.format.write(Action(calls=tuple(calls), thought=content.strip()), True) if calls else content

    async def _post(self, body: Mapping[str, Any]) -> Any:
        data = json.dumps(body).encode()
        for wait in (*RETRY_SECONDS, None):
            try:
                return await in_thread(self._send, data)
            except urllib.error.HTTPError as error:
                detail = error.read(300).decode("utf-8", "replace")
                fault = f"{self.url} answered {error.code}: {detail}"
                if error.code not in (408, 429, 500, 502, 503, 504) or wait is None:
                    raise EngineError(fault) from None
            except (OSError, ValueError, http.client.HTTPException) as error:
                fault = f"{self.url} did not answer: {error}"
                if wait is None:
                    raise EngineError(fault) from None
            await asyncio.sleep(wait)
        raise EngineError(f"{self.url} did not answer")

    def _send(self, data: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        key = os.environ.get("OPENAI_API_KEY")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        post = urllib.request.Request(self.url, data, headers)
        with urllib.request.urlopen(post, timeout=self.timeout) as response:
            return json.load(response)

    def end_session(self, session: str) -> None:
        return None

    async def close(self) -> None:
        return None


def wire_messages(conversation: tuple[Message, ...], format: Format, has_tools: bool) -> list[dict[str, Any]]:
    """Our messages as the chat API wants them: calls with ids, and tool answers that name theirs."""
    rows: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for number, message in enumerate(conversation):
        row: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "assistant" and format.schema_in_template:
            action = format.parse(message.content, has_tools)
            open_calls = [f"call_{number}_{k}" for k in range(len(action.calls))]
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
                row["role"] = "user"  # an answer to a reply that made no call: the API knows no such tool message
        if message.images:
            pictures = [{"type": "image_url", "image_url": {"url": image}} for image in message.images]
            row["content"] = [{"type": "text", "text": message.content}, *pictures]
        rows.append(row)
    return rows


def _arguments(text: Any) -> dict[str, Any] | None:
    """A server's arguments, or None where they are not a JSON object: never an empty or invented call."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
