"""Plain data as JSON text that keeps the Python types. Used inside and outside of a sandbox.

Only data can be encoded: numbers, strings, None, and lists, tuples, sets and dicts of them. An object with its own
methods (an `__eq__` that always returns True) cannot.
"""

from _json import encode_basestring_ascii as quoted  # `json` itself would double an interpreter's start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class NotData(Exception):
    """A value that is not plain data."""


def dumps(value: object) -> str:
    """Return the value as one line of JSON; NotData if it is not plain data."""
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
        return f"[{', '.join(map(dumps, value))}]"
    if isinstance(value, tuple):
        return f'{{"tuple": [{", ".join(map(dumps, value))}]}}'
    if isinstance(value, (set, frozenset)):
        return f'{{"set": [{", ".join(sorted(map(dumps, value)))}]}}'
    if isinstance(value, dict):
        pairs = ", ".join(f"[{dumps(key)}, {dumps(item)}]" for key, item in value.items())
        return f'{{"dict": [{pairs}]}}'
    raise NotData(type(value).__name__)


def loads(text: str) -> "Any":
    """Return the value that such a text encodes; ValueError if it encodes none."""
    import json

    try:
        return json.loads(text, object_hook=_restore)
    except (RecursionError, TypeError, KeyError) as error:
        raise ValueError(f"not a value: {error}") from None


def _restore(tagged: "dict[str, Any]") -> object:
    ((kind, body),) = tagged.items()
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
