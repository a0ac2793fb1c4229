"""A trained model on this machine as the client of a planner. It is loaded when it is first used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from practicum.data.run_folder import ModelRef, resolve_model
from practicum.engines.base import Sampling
from practicum.environment import Message, Reply
from practicum.models.loader import resolve_device
from practicum.policy import Policy
from practicum.rollout_setup import local_engine


class LocalClient:
    """A model, adapter, run or checkpoint; greedy by default."""

    def __init__(self, model: str, temperature: float = 0.0, max_tokens: int = 64, device: str = "auto") -> None:
        self.ref: ModelRef = resolve_model(model)
        self.sampling, self.device = Sampling(temperature, max_tokens=max_tokens), device
        self._policy: Policy | None = None

    @property
    def is_loaded(self) -> bool:
        return self._policy is not None

    @property
    def policy(self) -> Policy:
        """The policy; the first use loads the model."""
        if self._policy is None:
            engine, renderer = local_engine(self.ref, resolve_device(self.device))
            self._policy = Policy(engine, renderer, sampling=self.sampling)
        return self._policy

    async def reply(self, messages: Sequence[Message], *, response_format: Mapping[str, Any] | None = None) -> Reply:
        """Return the model's reply; one with a `response_format` is sampled among the tokens that it allows."""
        return await self.policy.reply(messages, response_format=response_format)

    async def close(self) -> None:
        if self._policy is not None:
            await self._policy.engine.close()
            self._policy = None
