"""The settings of an agent: reply format, sampling, and limits of turns and time."""

from __future__ import annotations

from dataclasses import dataclass, field

from practicum.config.fields import default_of
from practicum.config.train import DeadlinesConfig
from practicum.engines.base import Sampling


@dataclass(frozen=True)
class Deadlines:
    """Seconds that each wait of an episode may take; no wait is without a limit. Bounds are those of the schema."""

    reset: float = default_of(DeadlinesConfig, "reset")
    generate: float = default_of(DeadlinesConfig, "generate")
    step: float = default_of(DeadlinesConfig, "step")
    episode: float = default_of(DeadlinesConfig, "episode")


@dataclass(frozen=True)
class Agent:
    """Settings of one agent; the same for every episode of a run."""

    format: str = "hf"
    max_turns: int = 4
    sampling: Sampling = field(default_factory=Sampling)
    thoughts: str = "keep"
    """Whether <think>…</think> of earlier replies stays in the prompt: keep or strip."""
    deadlines: Deadlines = field(default_factory=Deadlines)
