"""What an agent acts in: messages, actions, steps, and the environment itself.

An environment is one Python class. `reset` and `step` are all it must write; the rest has defaults.
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
    """A tool by name with its arguments."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. `name` is the tool's on a tool message; `images` are PNG screenshots as data URIs."""

    role: str
    content: str
    name: str | None = None
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """A reply, understood. `content` is its plain part: the final answer or a world's command.

    `error` says why the reply could not be understood; such an action never reaches the environment:
    the agent loop answers it with an observation.
    """

    text: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What is new to the agent. `tools` are JSON schemas; `legal` lists commands where a world knows them."""

    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    legal: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The world's answer. `success` of None means: a terminated episode succeeded iff its reward is > 0."""

    observation: Observation = Observation()
    reward: float = 0.0
    components: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    progress: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


Policy = Callable[[Observation], Action]
"""Something that acts on what it sees: an expert, a random player."""


class Environment(abc.ABC):
    """A world for one episode at a time."""

    name: ClassVar[str] = ""
    formats: ClassVar[tuple[str, ...]] = ("hf", "react")
    """Reply formats that make sense here; the first is the default."""
    invalid_reward: float = 0.0
    """Reward of a turn whose reply does not parse."""
    floor: ClassVar[float] = 0.0
    """The most a policy that does nothing useful scores on average; `envs check` holds it to that."""
    ceiling: ClassVar[float] = 1.0
    """The share of tasks that its expert solves; `envs check` holds it to that too."""

    @abc.abstractmethod
    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin the task and return the first observation."""

    @abc.abstractmethod
    async def step(self, action: Action) -> Step:
        """Do one action."""

    async def truncate(self) -> Step:
        """The agent loop cuts the episode (turns, tokens): the last word, usually a score of what was done."""
        return Step(truncated=True)

    async def close(self) -> None:
        """Free what the episode held."""
        return None

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """The first `count` tasks of a split: the same on every machine, splits disjoint."""
        raise NotImplementedError(f"{type(self).__name__} has no task list of its own")

    def plays(self, task: Task) -> bool:
        """Whether a task that names an environment is for this one."""
        return task.environment == self.name

    def expert(self, task: Task) -> Policy:
        """A policy that solves the task."""
        raise NotImplementedError(f"{type(self).__name__} has no expert")

    async def ready_expert(self, task: Task) -> None:
        """Wait for what `expert` needs from elsewhere, such as another process; comes before `expert` in a rollout."""
        return None

    def null(self, task: Task) -> Policy:
        """A policy that does nothing useful: it says the same empty thing for ever."""
        return lambda observation: Action(content="nothing")

    def random(self, task: Task, seed: int) -> Policy:
        """A policy that acts at random; a world that can list actions should override this."""
        return self.null(task)
