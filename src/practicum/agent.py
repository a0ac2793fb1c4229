"""What turns an environment and an engine into an agent: its reply format, limits and sampling."""

from __future__ import annotations

from dataclasses import dataclass, field

from practicum.chat.formats.base import Format
from practicum.chat.formats.registry import make_format
from practicum.engines.base import Sampling


@dataclass(frozen=True)
class Deadlines:
    """Seconds that each wait may take. Every wait in an episode has one."""

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
    """What becomes of <think>…</think> once a reply is history: keep or strip."""
    deadlines: Deadlines = field(default_factory=Deadlines)

    def make_format(self) -> Format:
        return make_format(self.format)
