"""Rows of converted data sets: what a reader returns, and how it reads the fields of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from practicum.data.retrieval import Document

Row = dict[str, Any]
Located = Sequence[tuple[str, Any]]
"""Rows with the location of each in its file."""


@dataclass(frozen=True)
class Converted:
    """Rows for a task file; documents for a corpus, where there are any."""

    rows: Sequence[Row]
    documents: Sequence[Document] = field(default=())


class InvalidRow(ValueError):
    """What is wrong with a row; `_naming` adds the file and the location."""


def text_field(row: Mapping[str, Any], name: str) -> str:
    """Return a field that must be a non-empty text."""
    value = field_of(row, name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidRow(f"'{name}' must be a non-empty text")
    return value


def list_field(row: Mapping[str, Any], name: str) -> list[Any]:
    value = field_of(row, name)
    if not isinstance(value, list):
        raise InvalidRow(f"'{name}' must be a list")
    return value


def field_of(row: Any, name: str) -> Any:
    if not isinstance(row, Mapping):
        raise InvalidRow(f"expected an object with '{name}', found {type(row).__name__}")
    if name not in row:
        raise InvalidRow(f"the field '{name}' is missing (it has: {', '.join(map(str, row)) or 'nothing'})")
    return row[name]
