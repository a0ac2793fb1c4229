"""Numbers and texts from untrusted files, made safe for JSON, for a terminal and for a page."""

from __future__ import annotations

import json
import math
from typing import Any

from practicum.utils.terminal import escape_invisible

MAX_INTEGER = 10**300
"""Integers from here on are no rewards; beyond 1.8e308 they are not even floats."""


def json_number(value: Any) -> float | int | str | None:
    """A number as JSON has it. NaN, infinities and other values become a string, which is shown but not counted."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return value if math.isfinite(value) else str(float(value))
        except OverflowError:
            return f"{str(value)[:12]}…"
    return escape_invisible(str(value)[:40])


def is_number(value: object) -> bool:
    """Whether a value is a number of plausible size. NaN and infinities are: they are shown and not counted."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < MAX_INTEGER
    return isinstance(value, float)


def json_value(value: Any, depth: int = 6, max_characters: int = 4000) -> Any:
    """An untrusted value as JSON of bounded depth and size, with all strings escaped."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return json_number(value)
    if isinstance(value, str):
        return escape_invisible(value[:max_characters]) + ("…" if len(value) > max_characters else "")
    if depth == 0:
        return "…"
    if isinstance(value, dict):
        return {
            escape_invisible(str(k)[:200]): json_value(v, depth - 1, max_characters)
            for k, v in list(value.items())[:100]
        }
    if isinstance(value, (list, tuple)):
        items = [json_value(item, depth - 1, max_characters) for item in value[:100]]
        return items + (["…"] if len(value) > 100 else [])
    return escape_invisible(str(value)[:max_characters])


def encode(value: Any) -> bytes:
    """JSON as bytes. Lone surrogates, which have no UTF-8 form, stay escapes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")
