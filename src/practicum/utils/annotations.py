"""Whether a value has the type of an annotation, for options that users write.

Numbers, texts, truth values, sequences, mappings, unions and None are checked; any other annotation allows everything.
"""

from __future__ import annotations

import collections.abc
import numbers
import os
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "truth values"),
    str: ("a text", "texts"),
    types.NoneType: ("null", "nulls"),
}
SEQUENCES = (list, tuple, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def annotations_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a function's parameters; none where they cannot be evaluated."""
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError, SyntaxError):  # e.g. a name that only type checkers import
        return {}


def has_type(value: Any, annotation: Any) -> bool:
    """Whether a value has the type of an annotation. 0 and 1 are truth values too."""
    origin = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(has_type(value, argument) for argument in arguments)
    if origin in SEQUENCES:
        return _is_sequence(value, arguments)
    if origin in MAPPINGS:
        is_mapping = isinstance(value, Mapping)
        return is_mapping and (len(arguments) < 2 or all(has_type(item, arguments[1]) for item in value.values()))
    if origin is bool:
        return isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))
    if origin is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if origin is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    if origin is str:
        return isinstance(value, str | os.PathLike)
    return value is None if origin in (None, types.NoneType) else True


def _is_sequence(value: Any, arguments: tuple[Any, ...]) -> bool:
    member = arguments[0] if len(set(arguments) - {...}) == 1 else Any
    if isinstance(value, collections.abc.Iterable) and not isinstance(value, str | Mapping):
        is_reusable = isinstance(value, collections.abc.Collection)  # an iterator can be read only once
        return not is_reusable or all(has_type(item, member) for item in value)
    return isinstance(value, str) and has_type(value, member)  # a text is a sequence of texts, as for type checkers


def describe(annotation: Any) -> str:
    """Return an annotation in words: "a whole number", "a list of texts", "a number or a text"."""
    origin = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(argument) for argument in arguments if argument is not types.NoneType)
    if origin in SEQUENCES:
        return f"a list of {WORDS[arguments[0]][1]}" if arguments and arguments[0] in WORDS else "a list"
    if origin in MAPPINGS:
        return f"a mapping to {WORDS[arguments[1]][1]}" if arguments[1:] and arguments[1] in WORDS else "a mapping"
    return WORDS[origin][0] if origin in WORDS else str(annotation)
