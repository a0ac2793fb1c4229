"""A task: what an episode is about. It is frozen, and its hash names its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

SPLIT_OF_BUCKET = ("train",) * 8 + ("val", "test")


def split_of_hash(content_hash: str) -> str:
    """Return the split of a content hash (hexadecimal)."""
    return SPLIT_OF_BUCKET[int(content_hash, 16) % len(SPLIT_OF_BUCKET)]


def split_of_content(content: object) -> str:
    """Return the split of a content: anything that `content_hash` takes."""
    return split_of_hash(content_hash(content))


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces; NaN and infinity raise ValueError."""
    return _canonical.encode(value)


def plain(value: Any) -> Any:
    """Return a read-only mapping as a dict; the `default` of a JSON encoder."""
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=plain)


class ReadOnlyDict(dict[str, Any]):
    """A dict that cannot be changed; unlike a read-only view, it can be pickled and copied."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("the fields of a task are read-only")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadOnlyDict, (dict(self),)

    def __copy__(self) -> ReadOnlyDict:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ReadOnlyDict:
        return self


def _frozen(value: Any) -> Any:
    """Return a JSON value whose mappings are read-only and whose lists are tuples, at every depth."""
    if isinstance(value, dict):
        return ReadOnlyDict({key: _frozen(item) for key, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def content_hash(value: Any) -> str:
    """Return sixteen hex digits of SHA-256 over the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """A frozen task. The environment, its tools and its reward read `fields` by name."""

    id: str
    environment: str
    split: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A read-only copy: no caller can change a task after its hash was taken.
        object.__setattr__(self, "fields", _frozen(json.loads(canonical_json(self.fields))))

    @cached_property
    def hash(self) -> str:
        """A hash of environment and fields; id and split are not part of it."""
        return content_hash([self.environment, self.fields])

    def __hash__(self) -> int:
        return hash((self.id, self.hash))
