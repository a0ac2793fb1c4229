"""The settings of an agent: reply format, sampling, limits of turns and time, and those of its roles."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from practicum.chat.renderer import Renderer
from practicum.config.fields import default_of
from practicum.config.train import DeadlinesConfig
from practicum.engines.base import Engine, Sampling
from practicum.errors import UserError, did_you_mean
from practicum.policy import Policy

EXTERNAL = "external"
"""The agent type whose agent is a program of its own."""
REWARD_SOURCES = ("environment", "callback", "exit_code")
FUNCTION_COMMAND = re.compile(r"(\S+\.py):([A-Za-z_]\w*)")
"""A command that is a function of a file, and no program."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds that each wait of an episode may take; no wait is without a limit. Bounds are those of the schema."""

    reset: float = default_of(DeadlinesConfig, "reset")
    generate: float = default_of(DeadlinesConfig, "generate")
    step: float = default_of(DeadlinesConfig, "step")
    episode: float = default_of(DeadlinesConfig, "episode")
    open: float = default_of(DeadlinesConfig, "open")
    tool: float | None = default_of(DeadlinesConfig, "tool")
    judge: float | None = default_of(DeadlinesConfig, "judge")


@dataclass(frozen=True)
class ExternalAgent:
    """An agent's program, and where its reward comes from."""

    command: str
    reward_from: str = "environment"
    """environment: its reward for the answer; callback: what the agent posts; exit_code: 0 is 1, another is 0."""
    keep_system: bool = False
    """Whether a conversation continues where the agent renders its system message again at each call."""
    train_abandoned: bool = False
    """Whether replies are trained of which the agent used another one to the same prompt."""
    sandbox: bool = False
    """Whether the program runs in a sandbox: no network but the gateway, no files but its own."""

    def checked(self) -> ExternalAgent:
        """Return it as it is; raise UserError where it cannot be run."""
        if self.reward_from not in REWARD_SOURCES:
            raise UserError(
                f"agent.reward_from={self.reward_from} is unknown.{did_you_mean(self.reward_from, REWARD_SOURCES)}"
            )
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise UserError(f"agent.command cannot be read ({error}): {self.command}") from None
        if not words:
            raise UserError("agent.agent_type=external needs agent.command, e.g. agent.command='python my_agent.py'.")
        matched = FUNCTION_COMMAND.fullmatch(self.command)
        if matched and not Path(matched[1]).expanduser().is_file():
            raise UserError(f"agent.command: there is no file '{matched[1]}'.")
        if matched and self.sandbox:
            raise UserError("agent.sandbox is for a program; a function runs in this process.")
        if self.sandbox and shutil.which("bwrap") is None:
            raise UserError("agent.sandbox needs bubblewrap: apt-get install bubblewrap, or leave it out.")
        if matched is None and shutil.which(words[0]) is None:
            raise UserError(f"agent.command: there is no program '{words[0]}'; give its path, or FILE.py:FUNCTION.")
        return self


@dataclass(frozen=True)
class RoleSettings:
    """Settings of one role that replace the agent's; None: the agent's value is used."""

    format: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    thoughts: str | None = None
    max_turns: int | None = None
    """Turns of this role in an episode, at most; None: as many as the episode has."""
    response_format: Mapping[str, Any] | None = None
    """The form that its replies must have; {"type": "text"}: any, whatever the agent's is."""

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
            response_format=agent.response_format if self.response_format is None else self.response_format,
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
    train_roles: tuple[str, ...] | None = None
    """The roles in training, which episodes record; None: the environment's first."""
    response_format: Mapping[str, Any] | None = None
    """The form that replies must have (`chat/response_format.py`); None: any text."""
    external: ExternalAgent | None = None
    """The agent's own program; None: the agent loop acts."""
