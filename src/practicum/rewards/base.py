"""`@reward` makes a reward of a plain function that scores an episode.

The function gets what its parameters name: `answer_given` (the agent's final answer, or None), `calls` (the tool calls,
without failed ones), any field of the task, and the state of a stateful tool under the tool's name; `**kwargs` gets
everything else. With `trajectory` it gets the record of the whole episode (a `Trajectory` whose last turn has no reward
and whose outcome is not known yet). An `async def` may also name `judge`, a model that it calls
(`await judge.reply(messages)`), which `agent.roles.judge` configures. It returns a number, or a mapping with `reward`
and further components that are recorded with it. A component named `success` is 1 where the task was solved, else 0;
without it, a reward above zero means solved.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from practicum.environment import TRAJECTORY, ToolCall
from practicum.errors import JudgeError, UserError
from practicum.task import Task
from practicum.utils.pickling import PickledByReference

JUDGE = "judge"
"""The parameter of a reward that gets a model to call, and the name of that model."""
OF_THE_EPISODE = (JUDGE, TRAJECTORY)
"""Parameters that the running episode gives, never a field of the task."""


@dataclass(frozen=True, slots=True)
class Score:
    """A reward, its parts, and whether the task counts as solved."""

    reward: float
    components: Mapping[str, float]
    success: bool


@dataclass(frozen=True)
class Reward(PickledByReference):
    """A named scoring function."""

    name: str
    function: Callable[..., Any]

    @functools.cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The function's parameters by name."""
        return dict(inspect.signature(self.function).parameters)

    def with_arguments(self, arguments: Mapping[str, Any]) -> Reward:
        """Return this reward with values for those of its parameters that are named: tool states, settings."""
        named = {name: arguments[name] for name in self.parameters if name in arguments}
        return replace(self, function=functools.partial(self.function, **named)) if named else self

    @functools.cached_property
    def is_async(self) -> bool:
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return inspect.iscoroutinefunction(function)

    def score(self, task: Task, answer_given: str | None, calls: Sequence[ToolCall]) -> Score:
        """Score an episode; JudgeError if the function raises or needs a field that the task does not have."""
        arguments = self._arguments(task, answer_given, calls)
        try:
            value = self.function(**arguments)
        except Exception as error:
            raise self._failure(error) from error
        return self._score_of(value)

    async def score_async(self, task: Task, answer_given: str | None, calls: Sequence[ToolCall]) -> Score:
        """Score an episode with an `async def`; a judge that cannot answer is a JudgeError too."""
        arguments = self._arguments(task, answer_given, calls)
        try:
            value = await self.function(**arguments)
        except JudgeError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return self._score_of(value)

    def _arguments(self, task: Task, answer_given: str | None, calls: Sequence[ToolCall]) -> dict[str, Any]:
        values: dict[str, Any] = {**task.fields, "answer_given": answer_given, "calls": tuple(calls), "task": task}
        arguments: dict[str, Any] = {}
        for key, parameter in self.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= {name: value for name, value in values.items() if name not in self.parameters}
            elif key in values and key not in OF_THE_EPISODE:
                arguments[key] = values[key]
            elif parameter.default is parameter.empty:
                if key in OF_THE_EPISODE:
                    raise JudgeError(f"reward '{self.name}' wants '{key}', which only a running episode has")
                raise JudgeError(f"reward '{self.name}' wants '{key}', which task '{task.id}' does not have")
        return arguments

    def _failure(self, error: Exception) -> JudgeError:
        return JudgeError(f"reward '{self.name}' failed: {type(error).__name__}: {error}")

    def _score_of(self, value: Any) -> Score:
        try:
            components = (
                {k: float(v) for k, v in value.items()} if isinstance(value, Mapping) else {"reward": float(value)}
            )
        except Exception as error:
            raise self._failure(error) from error
        if "reward" not in components or not all(math.isfinite(v) for v in components.values()):
            raise JudgeError(f"reward '{self.name}' returned {components}; it must give a finite 'reward'")
        total = components.pop("reward")
        success = components.pop("success", float(total > 0)) > 0
        return Score(total, components, success)


Function = Callable[..., Any]


@overload
def reward(name: Function) -> Reward: ...
@overload
def reward(name: str | None = None) -> Callable[[Function], Reward]: ...
def reward(name: Function | str | None = None) -> Reward | Callable[[Function], Reward]:
    """Make a reward of a function: `@reward`, `@reward()` or `@reward("name")`."""
    if callable(name):
        return reward()(name)

    def decorate(function: Function) -> Reward:
        chosen = name or function.__name__
        if JUDGE in inspect.signature(function).parameters and not inspect.iscoroutinefunction(function):
            raise UserError(f"The reward '{chosen}' asks a judge: write it as an `async def` and await its reply.")
        return Reward(chosen, function)

    return decorate
