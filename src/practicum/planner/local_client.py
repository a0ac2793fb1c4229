"""A trained model on this machine as the client of a planner. It is loaded once, when it is first asked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.chat.renderer import Renderer
from practicum.data.run_folder import ModelRef, resolve_model
from practicum.engines.base import Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Message, Observation
from practicum.models.decoder import Decoder
from practicum.models.loader import resolve_device
from practicum.task import Task

NO_TASK = Task("planner", "htdag", "test", {})
_sessions = itertools.count()


@dataclass(frozen=True, slots=True)
class LocalReply:
    """A reply of a local model, with the log-probs of its tokens."""

    text: str
    logprobs: tuple[float, ...] | None


class LocalClient:
    """A model, adapter, run or checkpoint; greedy by default."""

    def __init__(self, model: str, temperature: float = 0.0, max_tokens: int = 64, device: str = "auto") -> None:
        self.ref: ModelRef = resolve_model(model)
        self.sampling, self.device = Sampling(temperature, max_tokens=max_tokens), device
        self._loaded: tuple[LocalEngine, Renderer] | None = None

    def load(self) -> tuple[LocalEngine, Renderer]:
        """Return the engine and its renderer; the first call loads the model."""
        if self._loaded is None:
            device = resolve_device(self.device)
            loaded = self.ref.load(device.dtype, device.device)
            renderer = Renderer(loaded.tokenizer, None, loaded.end_ids)
            self._loaded = LocalEngine(Decoder(loaded.model), renderer, max_batch=device.batch_size), renderer
        return self._loaded

    async def reply(
        self, messages: Sequence[Message], *, response_format: Mapping[str, Any] | None = None
    ) -> LocalReply:
        """Return the model's reply. `response_format` has no effect: the model was trained to reply in its own form."""
        engine, renderer = self.load()
        session = f"planner#{next(_sessions)}"
        ids = tuple(token for span in renderer.start(messages) for token in span.ids)
        request = Request(
            ids, self.sampling, NO_TASK, Observation(tuple(messages)), tuple(messages), session=session, final=True
        )
        try:
            generation = await engine.generate(request)
        finally:
            engine.end_session(session)
        return LocalReply(renderer.decode(generation.ids), generation.logprobs)

    async def close(self) -> None:
        if self._loaded is not None:
            await self._loaded[0].close()
            self._loaded = None
