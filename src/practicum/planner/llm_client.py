"""What a planner needs of a language model: one method; and such a client for OpenAI-compatible servers."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from practicum.engines.chat_client import ChatClient
from practicum.environment import Message
from practicum.environments.htdag.actions import UNKNOWN_CONFIDENCE
from practicum.errors import EngineError, UserError
from practicum.trajectory import reply_confidence

logger = logging.getLogger(__name__)

DEFAULT_URL = "https://api.openai.com/v1"
JSON_REPLY: Mapping[str, Any] = {"type": "json_object"}
"""`response_format` of a reply that must be JSON."""


class ReplyText(Protocol):
    """A reply. If it has `logprobs`, those of its tokens, the planner's confidence comes from them."""

    @property
    def text(self) -> str: ...


class LLMClient(Protocol):
    """A language model that answers a conversation."""

    async def reply(
        self, messages: Sequence[Message], *, response_format: Mapping[str, Any] | None = None
    ) -> ReplyText:
        """Return the answer to a conversation. `response_format` is that of the chat completions API."""
        ...


@dataclass(frozen=True, slots=True)
class OpenAIReply:
    """A reply of an OpenAI-compatible server."""

    text: str
    logprobs: tuple[float, ...] | None = None


class OpenAIClient:
    """Chat completions of an OpenAI-compatible server; `ChatClient` describes how faults are handled."""

    def __init__(
        self,
        model: str,
        url: str | None = None,
        temperature: float = 0.7,
        max_tokens: int = 1024,
        timeout: float = 120.0,
    ) -> None:
        """`url` None is OPENAI_BASE_URL, or OpenAI's own; the key comes from OPENAI_API_KEY."""
        base = url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL
        self.model, self.temperature, self.max_tokens = model, temperature, max_tokens
        self.client = ChatClient(base, timeout)

    async def reply(
        self, messages: Sequence[Message], *, response_format: Mapping[str, Any] | None = None
    ) -> OpenAIReply:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": message.role, "content": message.content} for message in messages],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "logprobs": True,
        }
        if response_format is not None:
            body["response_format"] = dict(response_format)
        return await self.client.first_choice(body, _reply)

    async def close(self) -> None:
        await self.client.close()


def _reply(choice: Any) -> OpenAIReply:
    return OpenAIReply(str(choice["message"]["content"] or ""), _logprobs(choice))


def _logprobs(choice: Any) -> tuple[float, ...] | None:
    """Return the log-probs of a choice; None where the server gives none."""
    try:
        return tuple(float(token["logprob"]) for token in choice["logprobs"]["content"]) or None
    except (KeyError, TypeError, ValueError):
        return None


def confidence_of(reply: ReplyText) -> float:
    """Return the geometric mean of the reply's token probabilities; 0.8 where they are not known."""
    confidence = reply_confidence(getattr(reply, "logprobs", None))
    return UNKNOWN_CONFIDENCE if confidence is None else confidence


class CircuitBreaker:
    """Stops calls after failures in a row, for a while; then lets them through until enough have succeeded."""

    def __init__(self, max_failures: int = 5, recovery_seconds: float = 60.0, needed_successes: int = 2) -> None:
        self.max_failures, self.recovery_seconds = max_failures, recovery_seconds
        self.needed_successes = needed_successes
        self.num_failures = self.num_successes = 0
        self.opened_at: float | None = None

    @property
    def allows(self) -> bool:
        """Whether a call may be made now."""
        return self.opened_at is None or time.monotonic() - self.opened_at >= self.recovery_seconds

    def succeeded(self) -> None:
        self.num_failures = 0
        if self.opened_at is not None:
            self.num_successes += 1
            if self.num_successes >= self.needed_successes:
                self.opened_at = None

    def failed(self) -> None:
        self.num_failures += 1
        self.num_successes = 0
        if self.opened_at is not None or self.num_failures >= self.max_failures:
            self.opened_at = time.monotonic()


async def with_retries(
    call: Callable[[], Awaitable[Any]], retries: int = 3, first_wait: float = 1.0, max_wait: float = 30.0
) -> Any:
    """Await a call, again after waits that double; raise what the last try raised.

    Neither a UserError nor an EngineError is tried again: `ChatClient` has done so where it can help.
    """
    wait = first_wait
    for attempt in range(retries + 1):
        try:
            return await call()
        except (UserError, EngineError):
            raise
        except Exception as error:
            if attempt == retries:
                raise
            logger.warning("the planner's model failed (%s); trying again in %g s", error, wait)
            await asyncio.sleep(wait)
            wait = min(max_wait, 2 * wait)
    raise AssertionError("unreachable")
