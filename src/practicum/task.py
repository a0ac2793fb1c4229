"""One task: what an episode is about, frozen and named by its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, NaN refused."""
    return _canonical.encode(value)


def plain(value: Any) -> Any:
    """For `json`: a read-only view as the mapping it shows."""
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=plain)


def _frozen(value: Any) -> Any:
    """Mappings read-only and lists as tuples, all the way down."""
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def content_hash(value: Any) -> str:
    """Sixteen hex digits that name a JSON value by its content."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """A frozen task. `fields` feed the environment, its tools and its reward by name."""

    id: str
    environment: str
    split: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A private copy behind a read-only view: a task handed out can never change under its hash.
        object.__setattr__(self, "fields", _frozen(json.loads(canonical_json(self.fields))))

    @cached_property
    def hash(self) -> str:
        """Names the content, not the place: the id and the split take no part."""
        return content_hash([self.environment, self.fields])

    def __hash__(self) -> int:
        return hash((self.id, self.hash))
