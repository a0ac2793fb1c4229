"""`@tool`: a plain function becomes something an agent can call.

The schema comes from the signature and the docstring. Whatever goes wrong in a call (a missing or
unknown argument, a wrong type, an exception) becomes an observation that says so; a call is never
made with invented arguments.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from practicum.errors import nearest
from practicum.threads import in_thread

JSON_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave: the text shown to the agent, whether it failed, whether it ends the episode."""

    text: str
    failed: bool = False
    finish: bool = False


@dataclass(frozen=True)
class Tool:
    """A named function with a schema."""

    name: str
    description: str
    function: Callable[..., Any]
    parameters: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]
    finish: bool = False
    max_length: int = 2048
    timeout: float = 30.0

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema in the OpenAI function form, which chat templates render."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {k: dict(v) for k, v in self.parameters.items()},
                    "required": list(self.required),
                },
            },
        }

    def check(self, arguments: Mapping[str, Any]) -> str | None:
        """Why the arguments do not fit, or None."""
        for name in arguments:
            if name not in self.parameters:
                return f"{self.name} has no argument '{name}'.{nearest(name, self.parameters)}"
        for name in self.required:
            if name not in arguments:
                return f"{self.name} needs the argument '{name}'."
        for name, value in arguments.items():
            wanted = self.parameters[name].get("type")
            if wanted and not _fits(value, str(wanted)):
                return f"{self.name}: argument '{name}' must be of type {wanted}, got {type(value).__name__}."
        return None

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Run the tool off the event loop and within its deadline; failures come back as text.

        A deadline that passes raises TimeoutError: that is the world's fault, not the agent's.
        """
        wrong = self.check(arguments)
        if wrong is not None:
            return ToolResult(f"Error: {wrong}", failed=True)
        try:
            async with asyncio.timeout(self.timeout):
                if inspect.iscoroutinefunction(self.function):
                    value = await self.function(**arguments)
                else:
                    value = await in_thread(self.function, **arguments)
        except TimeoutError:
            raise TimeoutError(f"tool '{self.name}' did not answer within {self.timeout:g} s") from None
        except Exception as error:  # a tool's exception is something the agent may learn from
            return ToolResult(self._clip(f"Error: {error or type(error).__name__}"), failed=True)
        return ToolResult(self._clip(value if isinstance(value, str) else str(value)), finish=self.finish)

    def _clip(self, text: str) -> str:
        return text if len(text) <= self.max_length else text[: self.max_length] + " …(cut)"


def tool(
    name: str | None = None, *, finish: bool = False, max_length: int = 2048, timeout: float = 30.0
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function. `finish=True`: a successful call ends the episode."""

    def decorate(function: Callable[..., Any]) -> Tool:
        hints = typing.get_type_hints(function)
        summary, notes = _docstring(function)
        parameters: dict[str, dict[str, Any]] = {}
        required = []
        for key, parameter in inspect.signature(function).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"tool {function.__name__}: *args and **kwargs cannot be described to a model")
            entry: dict[str, Any] = {}
            kind = _json_type(hints.get(key))
            if kind:
                entry["type"] = kind
            if key in notes:
                entry["description"] = notes[key]
            parameters[key] = entry
            if parameter.default is parameter.empty:
                required.append(key)
        return Tool(
            name or function.__name__, summary, function, parameters, tuple(required), finish, max_length, timeout
        )

    return decorate


def _json_type(hint: Any) -> str | None:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = {_json_type(part) for part in typing.get_args(hint) if part is not type(None)}
        return kinds.pop() if len(kinds) == 1 else None
    return JSON_TYPES.get(typing.get_origin(hint) or hint)


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """First paragraph, and `name: text` lines below 'Args:'."""
    text = inspect.getdoc(function) or ""
    head, _, tail = text.partition("Args:")
    summary = " ".join(head.split("\n\n")[0].split())
    return summary, {m[1]: m[2].strip() for m in re.finditer(r"^\s*(\w+):\s*(.+)$", tail, re.M)}


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "number":
        return isinstance(value, (int, float))
    return isinstance(value, {"string": str, "integer": int, "array": list, "object": dict}.get(kind, object))
