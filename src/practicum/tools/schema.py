"""JSON schemas of Python signatures, and checks of values against them."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

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
