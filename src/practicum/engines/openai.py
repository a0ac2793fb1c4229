"""The openai engine: replies from any OpenAI-compatible chat server.

Such a server takes and returns text. The recorded ids are those that our tokenizer gives for that text, and there are
no log-probs: episodes are good for collecting and evaluation, and are refused for policy gradients.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from practicum.chat.formats.base import Format
from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request
from practicum.environment import Action, Message, ToolCall
from practicum.errors import EngineError
from practicum.trajectory import ActionSource, StopReason

if TYPE_CHECKING:
    import httpx

RETRY_SECONDS = (0.5, 2.0)
"""Waits before the second and the third try."""
RETRY_STATUS = (408, 429, 500, 502, 503, 504)
ERROR_BODY_BYTES = 300
"""Bytes of an error's body that its message quotes."""


class OpenAIEngine:
    """Chat completions over HTTP. The API key, if one is needed, comes from OPENAI_API_KEY.

    Redirects are not followed: the key is for the server that was named.
    """

    name = "openai"

    def __init__(self, url: str, model: str, format: Format, renderer: Renderer, timeout: float = 120.0) -> None:
        """`timeout` is in seconds, for each of connecting, sending and waiting for data."""
        self.url = url.rstrip("/") + "/chat/completions"
        self.model = model
        self.format = format
        self.renderer = renderer
        self.timeout = timeout
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def generate(self, request: Request) -> Generation:
        answer = await self._post(self.body(request))
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
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if request.tools and self.format.schema_in_template:
            body["tools"] = [dict(tool) for tool in request.tools]
        return body

    def _text(self, message: Mapping[str, Any]) -> str:
        """Return the reply as the format writes it; arguments that are not JSON stay as they are, for it to refuse."""
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
        """Return the answer's JSON; try again after a fault that may pass, then raise EngineError."""
        import httpx  # slow to import: only for those who use a server

        data = json.dumps(body).encode()
        for wait in (*RETRY_SECONDS, None):
            try:
                response = await self._http_client().post(self.url, content=data, headers=_headers())
                if response.is_success:
                    return response.json()
                detail = response.content[:ERROR_BODY_BYTES].decode("utf-8", "replace")
                error = EngineError(f"{self.url} answered {response.status_code}: {detail}")
                if response.status_code not in RETRY_STATUS:
                    raise error
            except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as fault:
                error = EngineError(f"{self.url} did not answer: {fault or type(fault).__name__}")
            if wait is None:
                raise error
            await asyncio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _http_client(self) -> httpx.AsyncClient:
        """Return the client of the running event loop: connections belong to the loop that opened them.

        Proxies and certificates are those that Python's own HTTP takes from the environment; httpx by itself also reads
        ALL_PROXY, and fails on a SOCKS proxy there.
        """
        import httpx

        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._client = httpx.AsyncClient(
                timeout=self.timeout,
                limits=httpx.Limits(max_connections=None),  # the rollout decides how many requests run at once
                proxy=_proxy(self.url),
                verify=ssl.create_default_context(),
                trust_env=False,
                follow_redirects=False,
            )
        return self._client

    def end_session(self, session: str) -> None:
        return None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()


def _headers() -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    return {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL (http_proxy, https_proxy, no_proxy)."""
    address = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(address.hostname or ""):
        return None
    proxy = urllib.request.getproxies().get(address.scheme)
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


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
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
