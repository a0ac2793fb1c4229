"""The interface of an engine: token ids in, token ids and log-probs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from practicum.environment import Message, Observation
from practicum.task import Task
from practicum.trajectory import StopReason


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. Temperature 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int = 0
    min_p: float = 0.0
    """Tokens with less than this share of the likeliest token's probability are left out."""

    def with_seed(self, seed: int) -> Sampling:
        return replace(self, seed=seed)


TopLogprobs = tuple[tuple[int, float], ...]
"""The most likely tokens at one position with their log-probs, the most likely first."""
MAX_TOP_LOGPROBS = 20
"""The most tokens per position that a request may ask for, as in OpenAI's API."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One token as it is sampled; see `Generation` for its log-probs."""

    id: int
    logprob: float
    top: TopLogprobs = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one reply. `ids` is the whole prompt.

    `task`, `observation`, `conversation` and `tools` are for engines that do not work on ids: a scripted one reads the
    task and the latest observation, a chat server the conversation. Requests of one `session` are turns of one episode.
    """

    ids: tuple[int, ...]
    sampling: Sampling
    task: Task
    observation: Observation
    conversation: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    session: str = ""
    final: bool = False
    """No further turn of the session follows, so the engine need not keep its KV cache."""
    adapter: str = ""
    """The LoRA adapter to answer with, where the engine serves several; "" is the policy itself."""
    on_tokens: Callable[[Sequence[SampledToken]], None] | None = None
    """Called with the tokens of every decode step as they are sampled, by engines that generate token by token."""
    top_logprobs: int = 0
    """How many of the most likely tokens at every position to report, of the distribution that is sampled from."""
    response_format: Mapping[str, Any] | None = None
    """The form that the reply must have (`chat/response_format.py`): a local engine samples among the tokens that it
    allows, a chat server gets it as a parameter."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One reply. `logprobs`, one per id, are of the distribution that was sampled from; None where unknown.

    `sampled` is false for an action that no model and no demonstrator wrote, such as one from a cache: its ids are
    context for later turns and are never trained.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    stop_reason: StopReason
    policy_version: int
    source: str
    prompt_cached: int = 0
    sampled: bool = True
    top_logprobs: tuple[TopLogprobs, ...] = ()
    """The most likely tokens at every position, where the request asked for them."""
    kept: str | None = None
    """The tokens that each id was sampled among (`chat/sampling_mask.py`), where top-k, top-p or min-p removed some."""
    response_format: Mapping[str, Any] | None = None
    """The form that every token was held to; None where there was none, or where a server enforced it itself.
    Log-probs are then of the distribution over the tokens that it allows."""
    first_token_time: float | None = field(default=None, compare=False)
    """When the first token was sampled (`time.monotonic`); None where the engine does not report it."""


class Engine(Protocol):
    """Generates replies, many at once. `generate` raises `EngineError` where it cannot answer."""

    name: str

    async def generate(self, request: Request) -> Generation: ...
    def end_session(self, session: str) -> None:
        """Free what is kept for a session; no request of it follows."""

    async def close(self) -> None: ...


class Weights(Protocol):
    """What an engine with its own copy of the weights needs of the policy: its files, and log-probs to compare."""

    def write(self, folder: Path) -> None:
        """Write the model, or only its adapter, as a folder."""

    def score(self, prompt: Sequence[int], reply: Sequence[int]) -> list[float]:
        """Return the log-probs of a reply's tokens after a prompt, at temperature 1, under the current weights."""


class PolicyEngine(Engine, Protocol):
    """An engine whose policy is being trained."""

    async def update_weights(self, version: int, weights: Weights) -> None:
        """Load weights; replies from here on are of `version`. No request may be running.

        An engine that cannot show that the weights arrived raises `EngineError`.
        """
