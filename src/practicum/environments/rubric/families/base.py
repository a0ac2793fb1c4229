"""A family of workflows: one kind of work in one field, with its vocabulary and hand-written rubrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A kind of work. Instances draw from its pools of words; `rubrics` are written by hand, by stakeholder."""

    name: str
    field: str
    form: str
    """document, csv, xlsx or code."""
    split: str
    parts: tuple[str, ...]
    """Headings of a document, columns of a table that are no measures, names of functions."""
    measures: tuple[str, ...]
    items: tuple[str, ...]
    terms: tuple[str, ...]
    banned: tuple[str, ...]
    sentences: tuple[str, ...]
    tasks: tuple[str, str, str]
    """Names of the three tasks: figures, draft, deliverable."""
    hours: tuple[float, float, float]
    rubrics: Mapping[str, str]
    """Ground-truth rubrics in the menu form, by the stakeholder who holds them."""
