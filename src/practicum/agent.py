"""The settings of an agent: reply format, sampling, limits of turns and time, and those of its roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from practicum.chat.renderer import Renderer
from practicum.config.fields import default_of
from practicum.config.train import DeadlinesConfig
from practicum.engines.base import Engine, Sampling
from practicum.policy import Policy


@dataclass(frozen=True)
class Deadlines:
    """Seconds that each wait of an episode may take; no wait is without a limit. Bounds are those of the schema."""

    reset: float = default_of(DeadlinesConfig, "reset")
    generate: float = default_of(DeadlinesConfig, "generate")
    step: float = default_of(DeadlinesConfig, "step")
    episode: float = default_of(DeadlinesConfig, "episode")


@dataclass(frozen=True)
class RoleSettings:
    """What a role has otherwise than the agent; None: as the agent has it."""

    format: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    thoughts: str | None = None
    max_turns: int | None = None
    """Turns of this role in an episode, at most; None: as many as the episode has."""

    def policy(self, engine: Engine, renderer: Renderer, agent: Agent, name: str) -> Policy:
        """The policy of the role with an engine."""
        sampling = agent.sampling
        if self.temperature is not None:
            sampling = replace(sampling, temperature=self.temperature)
        if self.max_tokens is not None:
            sampling = replace(sampling, max_tokens=self.max_tokens)
        return Policy(
            engine,
            renderer,
            self.format or agent.format,
            sampling,
            role=name,
            thoughts=self.thoughts or agent.thoughts,
            max_turns=self.max_turns,
        )


@dataclass(frozen=True)
class Agent:
    """Settings of one agent; the same for every episode of a run."""

    format: str = "hf"
    max_turns: int = 4
    sampling: Sampling = field(default_factory=Sampling)
    thoughts: str = "keep"
    """Whether <think>…</think> of earlier replies stays in the prompt: keep or strip."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    roles: Mapping[str, RoleSettings] = field(default_factory=dict)
    """Roles that differ from the agent in something; all others have its settings."""
