"""The settings of an agent: reply format, sampling, and limits of turns and time."""

from __future__ import annotations

from dataclasses import dataclass, field

from practicum.engines.base import Sampling


@dataclass(frozen=True)
class Deadlines:
    """Seconds that each wait of an episode may take; no wait is without a limit."""

    reset: float = 60.0
    generate: float = 600.0
    step: float = 120.0
    episode: float = 3600.0


@dataclass(frozen=True)
class Agent:
    """Settings of one agent; the same for every episode of a run."""

    format: str = "hf"
    max_turns: int = 4
    sampling: Sampling = field(default_factory=Sampling)
    thoughts: str = "keep"
    """Whether <think>…</think> of earlier replies stays in the prompt: keep or strip."""
    deadlines: Deadlines = field(default_factory=Deadlines)
