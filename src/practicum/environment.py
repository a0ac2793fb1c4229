"""Environments, and what passes between them and an agent: messages, actions, observations, steps.

An environment is one Python class. It must define `reset` and `step`; the rest has defaults.
One instance serves one episode at a time.
"""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from practicum.resources import SharesResources
from practicum.task import Task
from practicum.utils.concurrency import in_thread

SPLITS = ("train", "val", "test")
AWAITED_METHODS = ("reset", "step", "truncate", "close", "ready_expert")
"""Methods that the agent loop awaits. Written as a plain `def`, they are run in a thread."""
TRAJECTORY = "trajectory"
"""The parameter of `step`, `truncate` and of rewards that gets the record of the episode so far."""
AGENT_OPTIONS = ("tools", "system", "prompt", "roles", "macros", "cache")
"""Options that belong to the agent in every environment that has them."""
DEFAULT_ROLE = "policy"
"""The role of an episode in which only one model acts."""


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
    it with an observation. `confidence` is the geometric mean of the probabilities of the reply's tokens, where the
    engine reports them; `turn` is the index of the turn in which the agent loop recorded the action.
    """

    text: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    error: str | None = None
    confidence: float | None = field(default=None, compare=False)
    turn: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Observation:
    """What is new to the role that acts next. `legal` lists the valid commands, where they are known.

    `tools` are JSON schemas; a role has the tools of its first observation, and of every fresh one. A prompt continues
    what the role was shown before. With `fresh` it begins anew and has these messages only; with `continues` it goes on
    from the turn of that index (`Action.turn`) instead of the role's last turn, which makes a branch.
    """

    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    legal: tuple[str, ...] | None = None
    role: str = DEFAULT_ROLE
    fresh: bool = False
    continues: int | None = None
    branch_reason: str = ""
    """Why the prompt does not go on from the role's last turn, in words for a reader: "edited reply", "retry". Where it
    is empty, the agent loop says what it knows."""
    action: Action | None = None
    """The role's action, where the environment chose it and no model is called: one from a cache, a macro, a script. It
    is recorded as a turn without tokens, which is never trained, and goes to `step` as any other."""
    source: str = ""
    """Who chose `action`, such as "cache"."""
    counted: bool = True
    """Whether the turn counts towards `agent.max_turns`; one that does nothing in the environment, such as a manager's
    advice, need not. Of two such turns in a row the second counts."""


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's answer to an action."""

    observation: Observation = Observation()
    """What the agent sees next; after the last step it is recorded and not shown."""
    reward: float = 0.0
    """Reward of this step; an episode's reward is the sum over its steps."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward, logged beside it; they are not added to it."""
    terminated: bool = False
    """Whether the task is over, solved or not."""
    truncated: bool = False
    """Whether the environment's own limit ended the episode."""
    success: bool | None = None
    """Whether the task was solved; None: solved if the reward of the terminating step is above 0."""
    progress: float | None = None
    """Share of the task that is done, from 0 to 1; None if unknown."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """JSON that is recorded with the turn and never shown to the agent."""
    role_rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards of single roles, used under `algorithm.role_credit=own`; they are no part of the episode's reward."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing of an episode: as SVG for the report, and as text for a terminal. Either may be left out."""

    svg: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply: of its prompt, of the reply, and those of the prompt that the engine had cached."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply outside of an episode; `data` is its JSON, where a response format was requested and it has one.

    `logprobs` are None where the engine does not report them.
    """

    text: str
    action: Action
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    usage: Usage
    stop_reason: str
    policy_version: int = 0
    data: Any = None

    @property
    def confidence(self) -> float | None:
        """The geometric mean of the probabilities of the reply's tokens."""
        return self.action.confidence


class ChatModel(Protocol):
    """A model that environments and rewards may call: a judge, a simulated user."""

    async def reply(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        response_format: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> Reply:
        """Return the reply to messages; raise where the model cannot answer."""
        ...


ScriptedPolicy = Callable[[Observation], Action]
"""A scripted policy: an expert, a random one. A new one is made for each episode."""


def in_thread_if_plain(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a coroutine function that runs a plain function in a thread, so that it does not stop other episodes."""

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        value = await in_thread(function, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value

    return awaited


def with_trajectory(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a method that passes the record of the episode so far to a method with a parameter `trajectory`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    async def awaited(self: Environment, *args: Any, **kwargs: Any) -> Any:
        if TRAJECTORY not in signature.bind_partial(self, *args, **kwargs).arguments:
            kwargs[TRAJECTORY] = self.trajectory_so_far()
        return await function(self, *args, **kwargs)

    return awaited


class Environment(SharesResources, abc.ABC):
    """An environment; one instance runs one episode at a time.

    `reset`, `step`, `truncate`, `close` and `ready_expert` are awaited. Write them as `async def` where they await
    something or are quick; a plain `def` is run in a thread. A `step` or `truncate` with a parameter `trajectory` gets
    the record of the episode so far.
    """

    name: ClassVar[str] = ""
    roles: tuple[str, ...] = (DEFAULT_ROLE,)
    """The roles that act in an episode. The first is the policy's own: it is trained unless `agent.train_roles` names
    others."""
    models: Mapping[str, ChatModel] = {}
    """The models that the environment itself calls, by name (see `model_names`); they are set before `reset`."""
    tool_seconds: float | None = None
    """Seconds that one call of a tool may take, where `agent.deadlines.tool` says so; set before `reset`."""
    formats: ClassVar[tuple[str, ...]] = ("hf", "react")
    """Reply formats that the environment supports; the first is the default."""
    agent_options: ClassVar[tuple[str, ...]] = AGENT_OPTIONS
    """Options that say how the agent works and not what the task is, such as tools and prompts. They are no part of an
    evaluation's panel; `format` and the sampling settings are none either."""
    invalid_reward: float = 0.0
    """Reward of a turn whose reply does not parse."""
    scripted_policies: tuple[str, ...] = ()
    """Names of further scripted policies that `scripted` makes; `expert`, `random` and `null` exist without it."""
    floor: ClassVar[float] = 0.0
    """The highest mean score of a policy that does nothing useful; `practicum envs check` verifies it."""
    ceiling: ClassVar[float] = 1.0
    """The share of tasks that the expert solves; `practicum envs check` verifies it."""
    has_one_answer: ClassVar[bool] = True
    """Whether any other last reply than the expert's is wrong; if so, `practicum envs check` plays changed replies."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in AWAITED_METHODS:
            function = cls.__dict__.get(name)
            if not inspect.isfunction(function):
                continue
            takes_trajectory = name in ("step", "truncate") and TRAJECTORY in inspect.signature(function).parameters
            if not inspect.iscoroutinefunction(function):
                function = in_thread_if_plain(function)
                setattr(cls, name, function)
            if takes_trajectory:
                setattr(cls, name, with_trajectory(function))

    def trajectory_so_far(self) -> Any:
        """Return the `Trajectory` of the running episode: all turns up to the reply that is being answered, which has
        no reward yet. Its outcome is not known and reads `cancelled`. The agent loop sets this function."""
        raise RuntimeError("the trajectory was asked for, and only an episode of the agent loop has one")

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

    @classmethod
    def split_options(cls, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options that define the task and those of the agent."""
        agent = {key: value for key, value in options.items() if key in cls.agent_options}
        return {key: value for key, value in options.items() if key not in agent}, agent

    def model_names(self) -> tuple[str, ...]:
        """Return the names of the models that it calls, such as a judge or a simulated user."""
        return ()

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Return the first `count` tasks of a split: the same on every machine, splits disjoint."""
        raise NotImplementedError(f"{type(self).__name__} has no task list of its own")

    def published_scores(self, tasks: Sequence[Task]) -> Mapping[str, tuple[float, float]]:
        """Return published success rates with their standard errors, by the policy's name. They are those of exactly
        these tasks, or the name says of which others."""
        return {}

    def plays(self, task: Task) -> bool:
        """Whether a task is for this environment."""
        return task.environment == self.name

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return a policy that solves the task."""
        raise NotImplementedError(f"{type(self).__name__} has no expert")

    async def ready_expert(self, task: Task) -> None:
        """Wait for what `expert` needs, such as another process; a rollout awaits this before it calls `expert`."""
        return None

    def is_answer_unique(self, task: Task) -> bool:
        """Whether any other last reply than the expert's is wrong in this task."""
        return self.has_one_answer

    def wrong_attempts(self, task: Task, solution: Sequence[Action]) -> Sequence[Sequence[Action]]:
        """Return attempts that must not succeed, made from the actions with which the expert solved the task.

        `practicum envs check` plays them. An environment in which other replies than the expert's may be right should
        override this.
        """
        return ()

    @classmethod
    def draw_episode(cls, task: Task, actions: Sequence[Action]) -> Drawing | None:
        """Return a drawing of an episode, from its task and the actions that reached the environment.

        `practicum report` and `practicum show` show it. The record may be damaged or by another version; what this
        raises is shown in place of the drawing.
        """
        return None

    def null(self, task: Task) -> ScriptedPolicy:
        """Return a policy that does nothing useful: it always gives the same empty answer."""
        return lambda observation: Action(content="nothing")

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that acts at random; an environment that can list actions should override this."""
        return self.null(task)

    def scripted(self, name: str, task: Task, seed: int) -> ScriptedPolicy:
        """Return the policy of a name in `scripted_policies`; `seed` decides everything that is random in it."""
        raise NotImplementedError(f"{type(self).__name__} has no scripted policy '{name}'")
