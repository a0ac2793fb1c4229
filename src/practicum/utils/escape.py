"""Numbers and texts of strangers, made fit for JSON and for a page."""

from __future__ import annotations

import json
import math
import re
from typing import Any

UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u206f\ufeff]")
"""Characters that drive a terminal, or turn the direction of what stands around them, or cannot be seen at all."""
LARGEST_WHOLE = 10**300
"""Whole numbers from here on are no rewards; beyond 1.8e308 they are not even floats."""


def shown(text: str) -> str:
    """What cannot be seen, or would disturb its surroundings, as an escape."""
    return UNSEEN.sub(lambda found: _escape(ord(found[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def number(value: Any) -> float | int | str | None:
    """A number as JSON has it. What is none there (NaN, infinities) is a text, shown and never counted."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return value if math.isfinite(value) else str(float(value))
        except OverflowError:
            return f"{str(value)[:12]}…"
    return shown(str(value)[:40])


def is_number(value: object) -> bool:
    """Whether a figure is one. NaN and infinities are: they are shown as what they are, and not counted with."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < LARGEST_WHOLE
    return isinstance(value, float)


def plain(value: Any, depth: int = 6, room: int = 4000) -> Any:
    """A stranger's mapping as JSON of bounded depth and size, all texts shown harmlessly."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, str):
        return shown(value[:room]) + ("…" if len(value) > room else "")
    if depth == 0:
        return "…"
    if isinstance(value, dict):
        return {shown(str(k)[:200]): plain(v, depth - 1, room) for k, v in list(value.items())[:100]}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth - 1, room) for item in value[:100]] + (["…"] if len(value) > 100 else [])
    return shown(str(value)[:room])


def encode(value: Any) -> bytes:
    """JSON as bytes. Lone surrogates, which have no UTF-8 form, stay escapes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")
