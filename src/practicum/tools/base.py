"""`@tool`: a plain function becomes something an agent can call.

The schema comes from the signature and the docstring. Whatever goes wrong in a call (a missing or
unknown argument, a wrong type, an exception) becomes an observation that says so; a call is never
made with invented arguments. Two things end the episode instead, unscored: a deadline that passes
and a `ToolFailure`. A `UserError`, a wrong setting, stops everything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from practicum.errors import UserError, did_you_mean
from practicum.tools.errors import ToolFailure
from practicum.tools.pool import Lease, StatePool, perform, pool_for
from practicum.tools.schema import describe, misfit
from practicum.utils.deadline import clocked


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave: the text shown to the agent, whether it failed, whether it ends the episode.

    `info` is what else the tool told: recorded, not shown.
    """

    text: str
    failed: bool = False
    finish: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tool:
    """A named function with a schema.

    With a `pool`, the function's first parameter is the episode's state, which the agent does not see.
    With `given`, that schema is shown as it stands.
    """

    name: str
    description: str
    function: Callable[..., Any]
    parameters: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]
    finish: bool = False
    max_length: int = 2048
    timeout: float = 30.0
    pool: StatePool | None = None
    given: Mapping[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema in the OpenAI function form, which chat templates render."""
        parameters = {
            "type": "object",
            "properties": {k: dict(v) for k, v in self.parameters.items()},
            "required": list(self.required),
        }
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": parameters if self.given is None else dict(self.given),
            },
        }

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        """Why the arguments do not fit, or None."""
        open_ended = self.given is not None and bool(self.given.get("additionalProperties"))
        for name in arguments:
            if name not in self.parameters and not open_ended:
                return f"{self.name} has no argument '{name}'.{did_you_mean(name, self.parameters)}"
        for name in self.required:
            if name not in arguments:
                return f"{self.name} needs the argument '{name}'."
        for name, value in arguments.items():
            fault = misfit(value, self.parameters.get(name, {}))
            if fault is not None:
                return f"{self.name}: argument '{name}' {fault}."
        return None

    async def call(self, arguments: Mapping[str, Any], lease: Lease | None = None) -> ToolResult:
        """Run the tool within its deadline, off the event loop unless it is a coroutine function; failures come back as
        text.

        A deadline that passes raises TimeoutError: that is the world's fault, not the agent's. A tool
        with a `pool` needs the episode's lease on a state.
        """
        wrong = self.check(arguments)
        if wrong is not None:
            return ToolResult(f"Error: {wrong}", failed=True)
        if self.pool is not None and lease is None:
            raise TypeError(f"tool '{self.name}' is stateful: call it with a lease from its pool")
        timer = asyncio.timeout(self.timeout)
        try:
            if self.pool is None or lease is None:
                value = await clocked(perform(self.function, **arguments), timer)
            else:
                async with timer, lease.borrowed() as state:
                    value = await perform(self.function, state, **arguments)
        except (ToolFailure, UserError):
            raise
        except Exception as error:  # a tool's exception is something the agent may learn from
            if timer.expired():
                raise TimeoutError(f"tool '{self.name}' did not answer within {self.timeout:g} s") from None
            return ToolResult(self._clip(f"Error: {_said(error)}"), failed=True)
        return self._result(value)

    def _result(self, value: Any) -> ToolResult:
        """A text, or a mapping with `observation` and whatever else is to be recorded.

        What ends the episode is the answer, which is judged whole.
        """
        info: Mapping[str, Any] = {}
        if isinstance(value, Mapping) and "observation" in value:
            info = {key: item for key, item in value.items() if key != "observation"}
            value = value["observation"]
        if isinstance(value, (dict, list)):
            value = json.dumps(value, ensure_ascii=False, default=str)
        text = str(value)
        return ToolResult(text if self.finish else self._clip(text), finish=self.finish, info=info)

    def _clip(self, text: str) -> str:
        return text if len(text) <= self.max_length else text[: self.max_length] + " …(cut)"


def tool(
    name: str | None = None,
    *,
    finish: bool = False,
    max_length: int = 2048,
    timeout: float = 30.0,
    stateful: Callable[[], Any] | None = None,
    pool_size: int | None = None,
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function. `finish=True`: a successful call ends the episode.

    `stateful` is a class (or a function that makes an object): each episode has one such object to
    itself, out of at most `pool_size`, and the function gets it as its first parameter. Tools that name
    the same class share the episode's object.
    """
    if pool_size is not None and stateful is None:
        raise TypeError("pool_size is for stateful tools; say stateful=... too")
    pool = None if stateful is None else pool_for(stateful, pool_size)

    def decorate(function: Callable[..., Any]) -> Tool:
        if pool is not None and not function.__code__.co_argcount:
            raise TypeError(f"tool {function.__name__} is stateful: its first parameter must be the state")
        summary, parameters, required = describe(function, skip=0 if pool is None else 1)
        return Tool(
            name or function.__name__, summary, function, parameters, required, finish, max_length, timeout, pool
        )

    return decorate


def _said(error: Exception) -> str:
    """An exception as a person would put it: a bare KeyError says only the key."""
    text = str(error)
    return (
        f"{type(error).__name__}: {text}" if text and isinstance(error, LookupError) else text or type(error).__name__
    )
