"""The contract of an engine: ids in, ids and log-probs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from practicum.environment import Message, Observation
from practicum.task import Task
from practicum.trajectory import ActionSource, StopReason


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. Temperature 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int = 0

    def with_seed(self, seed: int) -> Sampling:
        return replace(self, seed=seed)


@dataclass(frozen=True, slots=True)
class Request:
    """One reply wanted. `ids` is the whole prompt; the rest is for engines that do not work on ids:
    a scripted one reads the task and the latest observation, a remote chat server the conversation.
    """

    ids: tuple[int, ...]
    sampling: Sampling
    task: Task
    observation: Observation
    conversation: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    session: str = ""
    final: bool = False
    """No further turn of the session can follow, so that nothing need be kept for it."""
    adapter: str = ""
    """The adapter to answer with, where the engine serves several; "" is the policy itself."""
    on_token: Callable[[int], None] | None = None
    """Called with every token id as it is sampled, by engines that generate token by token."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One reply. `logprobs` are of the sampled ids under the sampling distribution, None where unknown."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    stop_reason: StopReason
    policy_version: int
    source: ActionSource
    prompt_cached: int = 0


class Engine(Protocol):
    """Many requests may be under way at once. An engine that cannot answer raises `EngineError`."""

    name: str

    async def generate(self, request: Request) -> Generation: ...
    def end_session(self, session: str) -> None:
        """The session is over; whatever was kept for it may go."""

    async def close(self) -> None: ...


class Weights(Protocol):
    """What an engine with a copy of its own needs of the policy: its files, and its word on log-probs."""

    def write(self, folder: Path) -> None:
        """The whole model, or only its adapter, as a folder."""

    def score(self, prompt: Sequence[int], reply: Sequence[int]) -> list[float]:
        """Log-probs of a reply's tokens after a prompt, at temperature 1, under the weights as they are now."""


class PolicyEngine(Engine, Protocol):
    """An engine whose policy is being trained."""

    async def update_weights(self, version: int, weights: Weights) -> None:
        """From here on replies belong to `version`. No request may be under way. An engine that cannot prove that the
        weights arrived raises `EngineError`."""
