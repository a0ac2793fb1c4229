"""Strict JSON for what a model wrote: what could only be guessed at, or could not be written again, is refused."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 64
"""Levels of lists and objects in a reply: what is read must be writable again."""


class NotStrictJSON(ValueError):
    """Text that Python's JSON reader accepts and a strict one does not."""


def _refuse_constant(constant: str) -> None:
    raise NotStrictJSON(f"{constant} is not JSON")


def finite_float(text: str) -> float:
    """Return the number of a text; one that is too large for a float raises NotStrictJSON."""
    value = float(text)
    if not math.isfinite(value):
        raise NotStrictJSON("a number is too large")
    return value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise NotStrictJSON("a key stands twice")
    return value


def strict_json(text: str) -> Any:
    """Return the value of a JSON text; raise ValueError (or RecursionError) where it is not strict JSON."""
    value = json.loads(
        text, parse_constant=_refuse_constant, parse_float=finite_float, object_pairs_hook=_object_without_duplicates
    )
    level = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            break
        containers = [item for item in level if isinstance(item, (dict, list))]
        level = [item for outer in containers for item in (outer.values() if isinstance(outer, dict) else outer)]
    if level:
        raise NotStrictJSON("it is nested too deeply")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise NotStrictJSON("it escapes half a character") from None
    return value


def error_detail(error: Exception) -> str:
    """Return what is known about a reading error, in parentheses, or ""."""
    if isinstance(error, json.JSONDecodeError):
        return f" ({error.msg} at character {error.pos})"
    return f" ({error})" if isinstance(error, NotStrictJSON) else ""
