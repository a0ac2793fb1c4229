"""The JSON object of a request, read field by field.

Whatever is wrong is a 400 that names the field. A field that nobody has read when the reading ends is an error too: a
parameter that is silently ignored gives a client other results than it asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from practicum.errors import did_you_mean
from practicum.serving.errors import bad_request

MAX_DEPTH = 100
"""Levels of lists and objects in a body."""


def parse_json(data: bytes) -> Any:
    """Return the value of a body; an APIError where it is not JSON that can be written again."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is not JSON: {error}", None, "invalid_json") from None
    _check_depth(value)
    return value


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        containers = [item for item in level if isinstance(item, (dict, list))]
        level = [item for outer in containers for item in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return
    raise bad_request("The body is nested too deeply.", None, "invalid_json")


def clean_text(text: str) -> str:
    """Return a text with lone surrogates replaced: they have no UTF-8 form, and no tokenizer takes them."""
    return text.encode("utf-8", "replace").decode()


class Body:
    """One JSON object. A field that is null counts as absent."""

    def __init__(self, values: Any, path: str = "") -> None:
        if not isinstance(values, dict):
            raise bad_request(f"{path or 'The body'} must be a JSON object.", path or None, "invalid_type")
        self.values: dict[str, Any] = values
        self.path = path
        self._read: set[str] = set()

    def name(self, field: str) -> str:
        """The full name of a field."""
        return f"{self.path}.{field}" if self.path else field

    def get(self, field: str) -> Any:
        """Return the value of a field as it is; None if it is absent."""
        self._read.add(field)
        return self.values.get(field)

    def require(self, field: str) -> Any:
        value = self.get(field)
        if value is None:
            raise bad_request(f"'{self.name(field)}' is missing.", self.name(field), "missing_required_parameter")
        return value

    def _typed(self, field: str, kind: type | tuple[type, ...], text: str) -> Any:
        value = self.get(field)
        if value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
            raise bad_request(f"'{self.name(field)}' must be {text}.", self.name(field), "invalid_type")
        return value

    def text(self, field: str) -> str | None:
        value = self._typed(field, str, "a string")
        return None if value is None else clean_text(value)

    def boolean(self, field: str, default: bool = False) -> bool:
        value = self._typed(field, bool, "true or false")
        return default if value is None else bool(value)

    def integer(self, field: str, low: int, high: int) -> int | None:
        value: Any = self._typed(field, (int, float), "a whole number")
        if isinstance(value, float):
            if not value.is_integer():
                raise bad_request(f"'{self.name(field)}' must be a whole number.", self.name(field), "invalid_type")
            value = int(value)
        self._bounded(field, value, low, high)
        return None if value is None else int(value)

    def number(self, field: str, low: float, high: float) -> float | None:
        value = self._typed(field, (int, float), "a number")
        if value is None:
            return None
        if isinstance(value, float) and not math.isfinite(value):
            raise bad_request(f"'{self.name(field)}' must be finite.", self.name(field))
        self._bounded(field, value, low, high)
        try:
            return float(value)
        except OverflowError:
            raise bad_request(f"'{self.name(field)}' is too large.", self.name(field)) from None

    def _bounded(self, field: str, value: Any, low: float, high: float) -> None:
        if value is not None and not low <= value <= high:
            raise bad_request(f"'{self.name(field)}' must be from {low} to {high}.", self.name(field))

    def choice(self, field: str, options: Sequence[str]) -> str | None:
        value = self.text(field)
        if value is not None and value not in options:
            raise bad_request(
                f"'{self.name(field)}' must be one of {', '.join(options)}.", self.name(field), "unsupported_value"
            )
        return value

    def list(self, field: str) -> list[Any]:
        return self._typed(field, list, "a list") or []

    def object(self, field: str) -> Body | None:
        value = self._typed(field, dict, "an object")
        return None if value is None else Body(value, self.name(field))

    def objects(self, field: str) -> Iterator[Body]:
        """The members of a list of objects."""
        for index, value in enumerate(self.list(field)):
            yield Body(value, f"{self.name(field)}[{index}]")

    def texts(self, field: str, limit: int) -> tuple[str, ...]:
        """A string, or a list of at most `limit` strings."""
        value = self.get(field)
        values = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
            raise bad_request(f"'{self.name(field)}' must be a string or a list of strings.", self.name(field))
        if len(values) > limit:
            raise bad_request(f"'{self.name(field)}' may have at most {limit} strings.", self.name(field))
        return tuple(map(clean_text, values))

    def accept(self, *fields: str) -> None:
        """Accept fields that change nothing in the answer."""
        self._read.update(fields)

    def refuse(self, neutral: Mapping[str, Sequence[Any]], reason: str = "this server does not have it") -> None:
        """Refuse fields, unless they have one of their neutral values."""
        for field, allowed_values in neutral.items():
            value = self.get(field)
            is_allowed = any(type(value) is type(allowed) and value == allowed for allowed in allowed_values)
            if value is not None and not is_allowed:
                raise bad_request(
                    f"'{self.name(field)}' is not supported: {reason}.", self.name(field), "unsupported_parameter"
                )

    def finish(self) -> None:
        """Refuse what has not been read."""
        for field in self.values:
            if field not in self._read:
                hint = did_you_mean(field, self._read)
                hint = hint if hint.startswith(" Did") else ""
                name = clean_text(self.name(field))[:200]
                raise bad_request(f"Unknown parameter '{name}'.{clean_text(hint)}", name, "unknown_parameter")
