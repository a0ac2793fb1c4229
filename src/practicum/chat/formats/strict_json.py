"""JSON read to the letter: what could only be guessed at, or could not be written again, is refused."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 64
"""Lists and objects within each other that a reply may have: what is read must be writable again."""


class NotStrictJSON(ValueError):
    """JSON that could be read, but not to the letter."""


def _refuse_constant(constant: str) -> None:
    raise NotStrictJSON(f"{constant} is not JSON")


def finite_float(written: str) -> float:
    value = float(written)
    if not math.isfinite(value):
        raise NotStrictJSON("a number is too large")
    return value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise NotStrictJSON("a key stands twice")
    return value


def strict_json(text: str) -> Any:
    """JSON to the letter; ValueError (or RecursionError) for what could only be guessed at or not be kept."""
    value = json.loads(
        text, parse_constant=_refuse_constant, parse_float=finite_float, object_pairs_hook=_object_without_duplicates
    )
    level = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            break
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [item for items in inner for item in items]
    if level:
        raise NotStrictJSON("it is nested too deeply")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise NotStrictJSON("it escapes half a character") from None
    return value


def error_detail(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f" ({error.msg} at character {error.pos})"
    return f" ({error})" if isinstance(error, NotStrictJSON) else ""
