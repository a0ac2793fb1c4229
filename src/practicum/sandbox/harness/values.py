"""Plain data as JSON text that keeps the Python types. Used inside and outside of a sandbox.

Only data can be encoded: numbers, strings, None, dates, and lists, tuples, sets and dicts of them. An object with its
own methods (an `__eq__` that always returns True) cannot; between two sandboxes it is passed as a reference, which
`refer` writes and `resolve` reads.
"""

from _json import encode_basestring_ascii as quoted  # `json` itself would double an interpreter's start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Refer = Callable[[object], str]
    Resolve = Callable[[str, Any], object]

MODULE_OF_TYPE = {
    "Fraction": "fractions",
    "Decimal": "decimal",
    "date": "datetime",
    "time": "datetime",
    "datetime": "datetime",
    "timedelta": "datetime",
    "deque": "collections",
}
"""Types of the standard library whose values are data too, with their modules; found by name, without an import."""
REFERENCES = ("object", "name")


class NotData(Exception):
    """A value that is not plain data."""


def not_data(value: object) -> str:
    raise NotData(type(value).__name__)


def dumps(value: object, refer: "Refer" = not_data) -> str:
    """Return the value as one line of JSON. What is not plain data is written by `refer`, by default NotData."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        text = float.__repr__(value)
        return text if text.strip("-") not in ("nan", "inf") else f'{{"float": "{text}"}}'
    if isinstance(value, str):
        return quoted(str(value))
    if isinstance(value, (bytes, bytearray)):
        return f'{{"bytes": "{bytes(value).hex()}"}}'
    if isinstance(value, complex):
        return f'{{"complex": [{dumps(value.real)}, {dumps(value.imag)}]}}'
    if isinstance(value, list):
        return f"[{_items(value, refer)}]"
    if isinstance(value, tuple):
        return f'{{"tuple": [{_items(value, refer)}]}}'
    if isinstance(value, (set, frozenset)):
        return f'{{"set": [{", ".join(sorted(dumps(item, refer) for item in value))}]}}'
    if isinstance(value, dict):
        pairs = ", ".join(f"[{dumps(key, refer)}, {dumps(item, refer)}]" for key, item in value.items())
        return f'{{"dict": [{pairs}]}}'
    return _dumps_by_type(value, refer)


def _items(values: "Any", refer: "Refer") -> str:
    return ", ".join(dumps(item, refer) for item in values)


def _dumps_by_type(value: "Any", refer: "Refer") -> str:
    name = type(value).__name__
    if MODULE_OF_TYPE.get(name) != type(value).__module__:
        return refer(value)
    if name == "Fraction":
        return f'{{"Fraction": [{dumps(value.numerator)}, {dumps(value.denominator)}]}}'
    if name == "timedelta":
        return f'{{"timedelta": [{dumps(value.days)}, {dumps(value.seconds)}, {dumps(value.microseconds)}]}}'
    if name == "deque":
        return f'{{"deque": [{_items(value, refer)}]}}'
    return f'{{"{name}": {quoted(str(value) if name == "Decimal" else value.isoformat())}}}'


def loads(text: str, resolve: "Resolve | None" = None) -> "Any":
    """Return the value that such a text encodes; ValueError if it encodes none."""
    import json

    def restore(tagged: "dict[str, Any]") -> object:
        ((kind, body),) = tagged.items()
        return resolve(kind, body) if resolve is not None and kind in REFERENCES else _restore(kind, body)

    try:
        return json.loads(text, object_hook=restore)
    except (RecursionError, TypeError, KeyError, ArithmeticError) as error:
        raise ValueError(f"not a value: {error}") from None


def _restore(kind: str, body: "Any") -> object:
    if kind in MODULE_OF_TYPE:
        import importlib

        cls = getattr(importlib.import_module(MODULE_OF_TYPE[kind]), kind)
        if kind in ("Fraction", "timedelta"):
            return cls(*body)
        return cls(body) if kind in ("Decimal", "deque") else cls.fromisoformat(body)
    if isinstance(body, str):
        return bytes.fromhex(body) if kind == "bytes" else float(body)
    if kind == "tuple":
        return tuple(body)
    if kind == "set":
        return set(body)
    if kind == "complex":
        return complex(*body)
    if kind == "dict":
        return dict(body)
    raise ValueError(f"unknown kind '{kind}'")
