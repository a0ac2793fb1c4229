"""An engine whose replies are given: what an API makes of a reply is tested with replies that no tiny model writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, SampledToken
from practicum.engines.local.engine import EngineStats
from practicum.engines.local.runner import StopStrings
from practicum.trajectory import StopReason


@dataclass
class ScriptEngine:
    """Replies with the ids of a text, token by token, up to the limits of the request."""

    renderer: Renderer
    reply: Callable[[Request], str]
    name: str = "script"
    seconds_per_token: float = 0.0
    max_batch: int = 8
    failure: str | None = None
    num_running: int = 0
    num_waiting: int = 0
    num_cancelled: int = 0
    gate: asyncio.Event | None = None
    """Replies begin when it is set."""

    def __post_init__(self) -> None:
        self.decoder = SimpleNamespace(shape=SimpleNamespace(context=2048))
        self.stats = EngineStats()
        self.prefixes = SimpleNamespace(bytes=0)
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> Generation:
        self.requests.append(request)
        ids: list[int] = []
        stops, reason = StopStrings(self.renderer.tokenizer), StopReason.END
        first_token_time: float | None = None
        try:
            if self.gate is not None:
                await self.gate.wait()
            for token in self.renderer.encode_reply(self.reply(request)):
                ids.append(token)
                first_token_time = first_token_time or time.monotonic()
                if request.on_tokens is not None:
                    request.on_tokens([SampledToken(token, -0.5, ((token, -0.5),) * request.top_logprobs)])
                await asyncio.sleep(self.seconds_per_token)
                if token in self.renderer.end_ids:
                    break
                if request.sampling.stop and stops.reached(ids, request.sampling.stop):
                    reason = StopReason.STRING
                    break
                if len(ids) >= request.sampling.max_tokens:
                    reason = StopReason.LENGTH
                    break
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        top = tuple(((token, -0.5),) * request.top_logprobs for token in ids) if request.top_logprobs else ()
        return Generation(
            tuple(ids), (-0.5,) * len(ids), reason, 0, "policy", top_logprobs=top,
            response_format=request.response_format, first_token_time=first_token_time,
        )  # fmt: skip

    def end_session(self, session: str) -> None:
        return None

    async def close(self) -> None:
        return None
