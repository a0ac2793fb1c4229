"""`@tool` makes a tool of a plain function.

The schema comes from the signature and the docstring. Every error of a call (a missing or unknown argument, a wrong
type, an exception) becomes an observation; a call is never made with invented arguments. Two errors end the episode
unscored instead: an exceeded deadline and a `ToolFailure`. A `UserError`, a wrong setting, stops the run.

How long the calls of an episode take is measured while it runs (`start_timing`, `tool_seconds`), and is never part of
its record on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import math
import re
import time
import types
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from practicum.errors import UserError, describe_exception, did_you_mean, own_place_of
from practicum.tools.errors import ToolFailure
from practicum.tools.pool import Lease, StatePool, pool_for
from practicum.utils.concurrency import agent_time, perform, with_timer
from practicum.utils.pickling import PickledByReference

T = TypeVar("T")
SECONDS_DIGITS = 6
"""Digits after the point of the seconds of a call."""

_calls: ContextVar[list[tuple[str, float]] | None] = ContextVar("tool_calls", default=None)
"""Name and seconds of every call of the episode that runs in this context."""
JSON_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    type(None): "null",
}
PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def describe(function: Callable[..., Any], skip: int = 0) -> tuple[str, dict[str, dict[str, Any]], tuple[str, ...]]:
    """Return a function's summary, the schemas of its parameters after the first `skip`, and the required ones."""
    summary, notes = docstring(function)
    signature = list(inspect.signature(function).parameters.items())[skip:]
    # Only these are evaluated: the type of a state may not be importable here.
    annotations = {key: function.__annotations__[key] for key, _ in signature if key in function.__annotations__}
    hints = typing.get_type_hints(
        types.SimpleNamespace(__annotations__=annotations), getattr(function, "__globals__", {})
    )
    parameters: dict[str, dict[str, Any]] = {}
    for key, parameter in signature:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(
                f"tool {function.__name__}: '{parameter}' cannot be described to a model; use plain named parameters"
            )
        parameters[key] = schema_of(hints[key]) if key in hints else {}
        if key in notes:
            parameters[key]["description"] = notes[key]
    return summary, parameters, tuple(key for key, parameter in signature if parameter.default is parameter.empty)


def docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a docstring and its `name: text` lines below 'Args:'."""
    text = inspect.getdoc(function) or ""
    head, _, tail = text.partition("Args:")
    summary = " ".join(head.split("\n\n")[0].split())
    return summary, {m[1]: m[2].strip() for m in re.finditer(r"^\s*(\w+):\s*(.+)$", tail, re.M)}


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the schema of a type hint; empty if any value is allowed."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        values = list(typing.get_args(hint))
        if not all(type(value) in JSON_TYPES for value in values):
            return {}
        return {**_type(sorted({JSON_TYPES[type(value)] for value in values})), "enum": values}
    if isinstance(hint, types.UnionType) or origin is typing.Union:
        parts = [schema_of(part) for part in typing.get_args(hint)]
        if not all(set(part) == {"type"} and isinstance(part["type"], str) for part in parts):
            return {"anyOf": parts} if all(parts) else {}
        return _type([part["type"] for part in parts])
    kind = JSON_TYPES.get(origin or hint)
    if kind is None:
        return {}
    items = schema_of(typing.get_args(hint)[0]) if kind == "array" and typing.get_args(hint) else {}
    return {"type": kind, "items": items} if items else {"type": kind}


def _type(kinds: list[str]) -> dict[str, Any]:
    return {"type": kinds[0] if len(kinds) == 1 else kinds}


def schema_problem(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return how a value violates a schema, or None. Only type, enum, anyOf and items are checked."""
    allowed = schema.get("type")
    kinds = [allowed] if isinstance(allowed, str) else allowed if isinstance(allowed, list) else []
    if kinds and not any(_has_type(value, kind) for kind in kinds):
        return f"must be of type {' or '.join(kinds)}, got {type(value).__name__}"
    options = schema.get("enum")
    if isinstance(options, list) and not any(value == o and type(value) is type(o) for o in options):
        return f"must be one of {', '.join(map(repr, options))}"
    variants = schema.get("anyOf")
    if isinstance(variants, list) and variants:
        problems = [schema_problem(value, variant) for variant in variants if isinstance(variant, Mapping)]
        if problems and all(problems):
            return problems[0]
    items = schema.get("items")
    if isinstance(value, list) and isinstance(items, Mapping):
        for index, item in enumerate(value):
            problem = schema_problem(item, items)
            if problem is not None:
                return f"[{index}] {problem}"
    return None


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean" or kind not in JSON_TYPES.values()
    return isinstance(value, PYTHON_TYPES.get(kind, ())) or kind not in JSON_TYPES.values()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a call: the text shown to the agent, whether the call failed, whether it ends the episode.

    `info` is recorded and not shown.
    """

    text: str
    failed: bool = False
    finish: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tool(PickledByReference):
    """A named function with a schema.

    With a `pool`, the function's first parameter is the episode's state, which the agent does not see.
    `input_schema`, if there is one, is shown to the agent instead of a schema of `parameters`.
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
    input_schema: Mapping[str, Any] | None = None
    agent_code: bool = False
    """Whether it runs a program of the agent: then its time is the agent's, and an exceeded deadline is shown to it."""

    schema: Mapping[str, Any] = field(init=False, compare=False, repr=False)
    """The JSON schema in OpenAI's function format, which chat templates render."""

    def __post_init__(self) -> None:
        parameters = {
            "type": "object",
            "properties": {k: dict(v) for k, v in self.parameters.items()},
            "required": list(self.required),
        }
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": parameters if self.input_schema is None else dict(self.input_schema),
        }
        object.__setattr__(self, "schema", {"type": "function", "function": function})

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        """Return why the arguments do not fit, or None."""
        open_ended = self.input_schema is not None and bool(self.input_schema.get("additionalProperties"))
        for name in arguments:
            if name not in self.parameters and not open_ended:
                return f"{self.name} has no argument '{name}'.{did_you_mean(name, self.parameters)}"
        for name in self.required:
            if name not in arguments:
                return f"{self.name} needs the argument '{name}'."
        for name, value in arguments.items():
            problem = schema_problem(value, self.parameters.get(name, {}))
            if problem is not None:
                return f"{self.name}: argument '{name}' {problem}."
        return None

    async def call(
        self, arguments: Mapping[str, Any], lease: Lease | None = None, seconds: float | None = None
    ) -> ToolResult:
        """Run the tool within its deadline; errors are returned as text. `seconds` is another deadline than its own.

        A plain function runs in a thread, a coroutine function on the event loop. An exceeded deadline raises
        TimeoutError: it is not the agent's error. A tool with a `pool` needs the episode's lease on a state.
        """
        problem = self.check(arguments)
        if problem is not None:
            return ToolResult(f"Error: {problem}", failed=True)
        if self.pool is not None and lease is None:
            raise TypeError(f"tool '{self.name}' is stateful: call it with a lease from its pool")
        seconds = self.timeout if seconds is None or math.isinf(self.timeout) else seconds
        timer = asyncio.timeout(seconds)
        try:
            with agent_time() if self.agent_code else contextlib.nullcontext():
                if self.pool is None or lease is None:
                    value = await with_timer(perform(self.function, **arguments), timer)
                else:
                    async with timer, lease.use() as state:
                        value = await perform(self.function, state, **arguments)
        except (ToolFailure, UserError):
            raise
        except Exception as error:  # the agent can react to a tool's exception
            if timer.expired() and self.agent_code:
                return ToolResult(f"Error: stopped, it took more than {seconds:g} s", failed=True)
            if timer.expired():
                raise TimeoutError(f"tool '{self.name}' did not answer within {seconds:g} s") from None
            # Where a user's own file raised it is for the record, not for the agent.
            info = {"exception": describe_exception(error)} if own_place_of(error) else {}
            return ToolResult(self._clip(f"Error: {_error_text(error)}"), failed=True, info=info)
        return self._result(value)

    def _result(self, value: Any) -> ToolResult:
        """Convert a return value: a text, or a mapping with `observation` and further values to record.

        The text of a tool that ends the episode is not cut: it is the answer, which the reward needs in full.
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


@overload
def tool(name: Callable[..., Any]) -> Tool: ...
@overload
def tool(
    name: str | None = None,
    *,
    finish: bool = False,
    max_length: int = 2048,
    timeout: float = 30.0,
    stateful: Callable[[], Any] | None = None,
    pool_size: int | None = None,
    agent_code: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    name: Callable[..., Any] | str | None = None,
    *,
    finish: bool = False,
    max_length: int = 2048,
    timeout: float = 30.0,
    stateful: Callable[[], Any] | None = None,
    pool_size: int | None = None,
    agent_code: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function: `@tool` or `@tool(...)`. `finish=True`: a successful call ends the episode.

    `stateful` is a class (or a function that returns an object): each episode has such an object of its own, out of at
    most `pool_size`, and the function gets it as its first parameter. Tools with the same class share the episode's
    object. `agent_code=True`: it runs a program that the agent has written, so that an exceeded deadline is the agent's
    failure and not an error of the environment.
    """
    if callable(name):
        return tool()(name)
    if pool_size is not None and stateful is None:
        raise TypeError("pool_size is for stateful tools; say stateful=... too")
    pool = None if stateful is None else pool_for(stateful, pool_size)

    def decorate(function: Callable[..., Any]) -> Tool:
        if pool is not None and not function.__code__.co_argcount:
            raise TypeError(f"tool {function.__name__} is stateful: its first parameter must be the state")
        summary, parameters, required = describe(function, skip=0 if pool is None else 1)
        return Tool(
            name or function.__name__, summary, function, parameters, required, finish, max_length, timeout, pool,
            agent_code=agent_code,
        )  # fmt: skip

    return decorate


def _error_text(error: Exception) -> str:
    """Return the text of an exception; the type is added where the text alone is not clear, as of a KeyError."""
    text = str(error)
    return (
        f"{type(error).__name__}: {text}" if text and isinstance(error, LookupError) else text or type(error).__name__
    )


def start_timing() -> None:
    """Begin an episode: calls from here on, in this context and the tasks it starts, are its own."""
    _calls.set([])


async def timed_call(name: str, answer: Awaitable[T]) -> T:
    """Await the answer of a tool and note how long it took, also where it failed."""
    started = time.perf_counter()
    try:
        return await answer
    finally:
        _note(name, time.perf_counter() - started)


async def timed_step(names: Sequence[str], answer: Awaitable[T]) -> T:
    """Await the step of an environment for a reply that called tools of these names.

    An environment that runs its tools itself, perhaps in another process, notes no calls: then the time of the step is
    that of its only call. Where there are several, none of them has a time.
    """
    calls, started = _calls.get(), time.perf_counter()
    num_before = 0 if calls is None else len(calls)
    try:
        return await answer
    finally:
        if len(names) == 1 and calls is not None and len(calls) == num_before:
            _note(names[0], time.perf_counter() - started)


def tool_seconds() -> dict[str, tuple[float, ...]]:
    """The seconds of each call of the episode so far, by tool."""
    seconds: dict[str, list[float]] = {}
    for name, value in _calls.get() or ():
        seconds.setdefault(name, []).append(round(value, SECONDS_DIGITS))
    return {name: tuple(values) for name, values in seconds.items()}


def _note(name: str, seconds: float) -> None:
    calls = _calls.get()
    if calls is not None:
        calls.append((name, seconds))
