"""Environments, and what passes between them and an agent: messages, actions, observations, steps.

An environment is one Python class. It must define `reset` and `step`; the rest has defaults.
One instance serves one episode at a time.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from practicum.task import Task

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by its name, with its arguments."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. `name` is the tool's, on a tool message; `images` are PNG screenshots as data URIs."""

    role: str
    content: str
    name: str | None = None
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """A parsed reply. `content` is its plain part: the final answer, or a command to the environment.

    `error` says why the reply does not parse. Such an action does not reach the environment: the agent loop answers
    it with an observation.
    """

    text: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What is new to the agent. `tools` are JSON schemas; `legal` lists the valid commands, where they are known."""

    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    legal: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's answer to an action.

    `components` are named parts of the reward, logged beside it. With `success` None, a terminated episode succeeded if
    its reward is above 0. `progress` is from 0 to 1. `info` must be JSON; it is recorded with the turn.
    """

    observation: Observation = Observation()
    reward: float = 0.0
    components: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    progress: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


Policy = Callable[[Observation], Action]
"""A scripted policy: an expert, a random one. A new one is made for each episode."""


class Environment(abc.ABC):
    """An environment; one instance runs one episode at a time."""

    name: ClassVar[str] = ""
    formats: ClassVar[tuple[str, ...]] = ("hf", "react")
    """Reply formats that the environment supports; the first is the default."""
    invalid_reward: float = 0.0
    """Reward of a turn whose reply does not parse."""
    floor: ClassVar[float] = 0.0
    """The highest mean score of a policy that does nothing useful; `practicum envs check` verifies it."""
    ceiling: ClassVar[float] = 1.0
    """The share of tasks that the expert solves; `practicum envs check` verifies it."""

    @abc.abstractmethod
    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the task and return the first observation. `seed` decides everything that is random in the episode."""

    @abc.abstractmethod
    async def step(self, action: Action) -> Step:
        """Carry out one action."""

    async def truncate(self) -> Step:
        """Score the episode when the agent loop ends it at a limit of turns or tokens."""
        return Step(truncated=True)

    async def close(self) -> None:
        """Free the resources of the episode."""
        return None

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Return the first `count` tasks of a split: the same on every machine, splits disjoint."""
        raise NotImplementedError(f"{type(self).__name__} has no task list of its own")

    def plays(self, task: Task) -> bool:
        """Whether a task is for this environment."""
        return task.environment == self.name

    def expert(self, task: Task) -> Policy:
        """Return a policy that solves the task."""
        raise NotImplementedError(f"{type(self).__name__} has no expert")

    async def ready_expert(self, task: Task) -> None:
        """Wait for what `expert` needs, such as another process; a rollout awaits this before it calls `expert`."""
        return None

    def null(self, task: Task) -> Policy:
        """Return a policy that does nothing useful: it always gives the same empty answer."""
        return lambda observation: Action(content="nothing")

    def random(self, task: Task, seed: int) -> Policy:
        """Return a policy that acts at random; an environment that can list actions should override this."""
        return self.null(task)
