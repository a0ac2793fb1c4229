"""One task: what an episode is about, frozen and named by its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from practicum.errors import UserError

QUESTION_KEYS = ("question", "problem", "instruction", "messages")


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


def read_task_file(path: str | Path, environment: str, split: str) -> list[Task]:
    """Tasks from a JSON array (or JSON lines) of objects with a `question`; other fields go to the reward."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"Dataset '{path}' does not exist; give the path of a JSON file.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"Dataset '{path}' is not UTF-8 text (byte {error.start}); save it as UTF-8 JSON.") from None
    except OSError as error:
        raise UserError(f"Dataset '{path}' cannot be read: {error.strerror}.") from None
    rows = _rows(text, path)
    if not rows:
        raise UserError(f"Dataset '{path}' is empty; it needs at least one object with a 'question'.")
    tasks: list[Task] = []
    seen: set[str] = set()
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UserError(f"Dataset '{path}', row {number}: expected an object, found {type(row).__name__}.")
        key = next((k for k in QUESTION_KEYS if k in row), None)
        if key is None:
            found = ", ".join(map(str, row)) or "nothing"
            raise UserError(f"Dataset '{path}', row {number} lacks 'question' (it has: {found}); add that field.")
        if key != "messages" and not (isinstance(row[key], str) and row[key].strip()):
            raise UserError(f"Dataset '{path}', row {number}: '{key}' must be a non-empty text.")
        fields = {**row, "question": row[key]} if key in ("problem", "instruction") else row
        try:
            task = Task(str(row.get("id", f"{path.stem}-{number}")), environment, split, fields)
        except ValueError:
            raise UserError(
                f"Dataset '{path}', row {number} holds NaN or Infinity, which are not JSON; write null or a number."
            ) from None
        if task.id in seen:
            raise UserError(f"Dataset '{path}', row {number}: the id '{task.id}' is used twice; ids must be unique.")
        seen.add(task.id)
        tasks.append(task)
    return tasks


def _rows(text: str, path: Path) -> Sequence[Any]:
    try:
        whole = json.loads(text) if text.strip() else []
    except json.JSONDecodeError as error:
        lines = [line for line in text.split("\n") if line.strip()]
        if len(lines) < 2 or not lines[0].lstrip().startswith("{"):
            raise UserError(
                f"Dataset '{path}' is not JSON (line {error.lineno}: {error.msg}); expected a list of objects."
            ) from None
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as fault:
                raise UserError(f"Dataset '{path}', line {number} is not JSON: {fault.msg}.") from None
        return rows
    if isinstance(whole, dict):
        return [whole]
    if not isinstance(whole, list):
        raise UserError(f"Dataset '{path}' must be a JSON list of objects, found {type(whole).__name__}.")
    return whole
