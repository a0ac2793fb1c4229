"""Fields of configuration schemas. A field has the bounds of its number or the values of its choice, and its default,
which is written nowhere else.

A schema field is declared with `at_least(1, 8)`, `between(0, 1, 0.5)`, `one_of(("warn", "stop"), "warn")`, ... ; a
settings class of the library takes default and bounds of the schema's field with `default_of(Schema, "name")`. Both are
kept in the field's metadata, so that a schema is still an ordinary dataclass, which OmegaConf reads.

Options that no schema declares, such as an environment's, are checked against the annotations of the function that
takes them (`annotations_of`, `has_type`): numbers, texts, truth values, sequences, mappings, unions and None are; any
other annotation allows everything.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from practicum.errors import UserError, did_you_mean

T = TypeVar("T")
KEY, CHOICES = "bounds", "choices"
"""Names of the bounds and of the choices in a field's metadata."""


@dataclass(frozen=True)
class Bounds:
    """The range of a number. An end that is not included belongs to no value of the field."""

    low: float = -math.inf
    high: float = math.inf
    includes_low: bool = True
    includes_high: bool = True
    or_zero: bool = False
    """Whether 0, which turns the thing off, is a value too."""

    def allows(self, value: float) -> bool:
        if self.or_zero and value == 0:
            return True
        above = value >= self.low if self.includes_low else value > self.low
        below = value <= self.high if self.includes_high else value < self.high
        return above and below

    def __str__(self) -> str:
        """In words: 'at least 1', 'above 0', 'from 0 to 1', 'above 0 and below 1', 'any number'."""
        low = "" if self.low == -math.inf else f"{'at least' if self.includes_low else 'above'} {self.low:g}"
        high = "" if self.high == math.inf else f"{'at most' if self.includes_high else 'below'} {self.high:g}"
        words = " and ".join(part for part in (low, high) if part) or "any number"
        return f"{words}, or 0" if self.or_zero else words


UNBOUNDED = Bounds()


def at_least(low: float, default: T) -> T:
    """A number that is `low` or more."""
    return _bounded(default, Bounds(low))


def above(low: float, default: T) -> T:
    """A number greater than `low`."""
    return _bounded(default, Bounds(low, includes_low=False))


def above_or_zero(low: float, default: T) -> T:
    """A number greater than `low`, or 0 for none."""
    return _bounded(default, Bounds(low, includes_low=False, or_zero=True))


def between(low: float, high: float, default: T, *, includes_low: bool = True, includes_high: bool = True) -> T:
    """A number from `low` to `high`."""
    return _bounded(default, Bounds(low, high, includes_low, includes_high))


def unbounded(default: T) -> T:
    """A number of which every finite value has a meaning, such as a seed."""
    return _bounded(default, UNBOUNDED)


def one_of(choices: Sequence[str], default: str) -> str:
    """A text that is one of these."""
    field: str = dataclasses.field(default=default, metadata={CHOICES: tuple(choices)})
    return field


def _bounded(default: T, bounds: Bounds) -> T:
    return dataclasses.field(default=default, metadata={KEY: bounds})


def default_of(schema: type, name: str) -> Any:
    """A field with the default and the bounds of a schema's field: settings of the library have no default of their
    own for anything that has a configuration key."""
    source = {field.name: field for field in dataclasses.fields(schema)}[name]
    return dataclasses.field(default=source.default, metadata=source.metadata)


def bounds_of(field: dataclasses.Field[Any]) -> Bounds | None:
    bounds: Bounds | None = field.metadata.get(KEY)
    return bounds


def choices_of(field: dataclasses.Field[Any]) -> tuple[str, ...] | None:
    choices: tuple[str, ...] | None = field.metadata.get(CHOICES)
    return choices


def walk(settings: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Every field below a schema (class or instance) that is not itself a group: its dotted key, the field, its value
    (of a class: its default)."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name) if not isinstance(settings, type) else _default(field)
        key = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{key}.")
        elif isinstance(value, dict) and any(dataclasses.is_dataclass(item) for item in value.values()):
            for name, item in value.items():
                yield from walk(item, f"{key}.{name}.")
        else:
            yield key, field, value


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def check_fields(settings: Any, prefix: str = "") -> None:
    """Require that every number below `settings` is finite and within the bounds of its field, and that every choice is
    one that its field has."""
    for key, field, value in walk(settings, prefix):
        choices = choices_of(field)
        if choices is not None and value not in choices:
            raise UserError(f"{key}={value} is unknown.{did_you_mean(str(value), choices)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            raise UserError(f"{key}={value} is not a finite number; choose one.")
        bounds = bounds_of(field)
        if bounds is not None and not bounds.allows(value):
            raise UserError(f"{key}={value}: it must be {bounds}.")


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


def describe_type(annotation: Any) -> str:
    """Return an annotation in words: "a whole number", "a list of texts", "a number or a text"."""
    origin = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe_type(argument) for argument in arguments if argument is not types.NoneType)
    if origin in SEQUENCES:
        return f"a list of {WORDS[arguments[0]][1]}" if arguments and arguments[0] in WORDS else "a list"
    if origin in MAPPINGS:
        return f"a mapping to {WORDS[arguments[1]][1]}" if arguments[1:] and arguments[1] in WORDS else "a mapping"
    return WORDS[origin][0] if origin in WORDS else str(annotation)
