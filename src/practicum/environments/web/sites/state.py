"""The state of a site as plain records, and the difference between two states.

A state is a dataclass whose fields are collections: dicts of records by id, or one record. Records are dataclasses of
JSON values. `facts` is a snapshot; `difference` says what a session changed, without regard to the ids of new records
and to case and spacing of text.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

Facts = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Values by collection, id of the record (empty where a collection is one record) and field."""
S = TypeVar("S", bound="SiteState")


@dataclass(frozen=True, slots=True)
class StateChange:
    """One change: a field set to a value, a record removed, or a record added. Values are canonical JSON."""

    kind: str
    collection: str
    record: str = ""
    field: str = ""
    value: str = ""

    def __str__(self) -> str:
        if self.kind == "set":
            return f"{self.collection} {self.record} {self.field} = {self.value}".replace("  ", " ")
        return f"{self.collection}: {self.kind} {self.record}{self.value}"


class SiteState:
    """Base of the states of sites."""

    STATIC: ClassVar[frozenset[str]] = frozenset()
    """Collections that no request can change."""
    INCIDENTAL: ClassVar[Mapping[tuple[str, str], Any]] = {}
    """Values that a field, by collection and name, may take by merely looking; no task forbids such a change."""

    def facts(self) -> Facts:
        """Return a snapshot of everything that requests can change."""
        return {
            entry.name: _collection(getattr(self, entry.name))
            for entry in fields(self)  # type: ignore[arg-type]
            if entry.name not in self.STATIC
        }

    def clone(self: S) -> S:
        """Return an independent copy."""
        result = copy.copy(self)
        for entry in fields(self):  # type: ignore[arg-type]
            if entry.name not in self.STATIC:
                setattr(result, entry.name, copy.deepcopy(getattr(self, entry.name)))
        return result


def _collection(value: Any) -> dict[str, dict[str, Any]]:
    return {key: _record(record) for key, record in value.items()} if isinstance(value, dict) else {"": _record(value)}


def _record(record: Any) -> dict[str, Any]:
    return {entry.name: _copied(getattr(record, entry.name)) for entry in fields(record)}


def _copied(value: Any) -> Any:
    """Return a copy of a JSON value."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def canonical(value: Any) -> str:
    """Return a JSON value as text in which case and spacing of strings, and a full stop at their end, do not count."""
    return json.dumps(_plain_text(value), sort_keys=True, ensure_ascii=False)


def _plain_text(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split()).casefold().rstrip(".!")
    if isinstance(value, dict):
        return {key: _plain_text(item) for key, item in value.items()}
    return [_plain_text(item) for item in value] if isinstance(value, list | tuple) else value


def difference(before: Facts, after: Facts) -> Counter[StateChange]:
    """Return the changes that make one snapshot the other; equal new records are counted."""
    items: Counter[StateChange] = Counter()
    for collection, old in before.items():
        new = after[collection]
        items.update(StateChange("removed", collection, key) for key in old.keys() - new.keys())
        items.update(StateChange("added", collection, value=canonical(new[key])) for key in new.keys() - old.keys())
        for key in old.keys() & new.keys():
            for field, value in new[key].items():
                values = _new_values(old[key][field], value)
                items.update(StateChange("set", collection, key, field, text) for text in values)
    return items


def _new_values(old: Any, new: Any) -> list[str]:
    """Return what a field was set to, nothing if it is as before; of a list, what was put in and taken out."""
    if isinstance(old, list) and isinstance(new, list):
        before, after = Counter(map(canonical, old)), Counter(map(canonical, new))
        return [*(f"with {text}" for text in (after - before)), *(f"without {text}" for text in (before - after))]
    return [] if new == old or canonical(new) == canonical(old) else [canonical(new)]
