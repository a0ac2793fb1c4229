"""The planner's decisions as text: the paper's JSON, and a short form for small models.

Short form: `go` executes the plan; `2: find, pay<1` decomposes task 2 into two parts, the second after the first; the
request itself is task 0. JSON: `{"decompose_further": true, "task_id": "0", "subtasks": [{"task_id": ..., "task_type":
..., "description": ..., "after": [...]}]}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from practicum.environments.htdag.requests import ROOT
from practicum.environments.htdag.task_dag import DEFAULT_TYPE
from practicum.environments.htdag.vocabulary import Item, parse_items

EXECUTE = "go"
ROOT_NAMES = ("root", ROOT, "")
UNKNOWN_CONFIDENCE = 0.8
"""Confidence in a reply whose token probabilities are not known, as published."""
MAX_REPLY_CHARACTERS = 50_000
MAX_ID_CHARACTERS, MAX_DESCRIPTION_CHARACTERS = 64, 1000
SHORT = re.compile(r"^\s*(?P<task>[\w.\-]+)\s*:(?P<items>.*)$", re.DOTALL)
AFTER_KEYS = ("after", "dependencies", "depends_on")
DECISION_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "decompose_further": {"type": "boolean"},
        "task_id": {"type": "string", "maxLength": 16},
        "subtasks": {
            "type": "array",
            "maxItems": 20,
            "items": {
                "type": "object",
                "properties": {
                    "task_id": {"type": "string", "maxLength": 16},
                    "task_type": {"type": "string", "maxLength": 32},
                    "description": {"type": "string", "maxLength": 200},
                    "after": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 20},
                },
                "required": ["task_type", "description"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["decompose_further"],
    "additionalProperties": False,
}
"""The JSON schema of a decision, for constrained decoding (`agent.response_format` of the recipe htdag)."""


class UnreadableAction(ValueError):
    """A reply that is no decision; the text says why."""


@dataclass(frozen=True, slots=True)
class ProposedTask:
    """One subtask of a decision; `after` names siblings or other tasks by id, or siblings by position from 1."""

    task_id: str = ""
    """"": the id is made from the parent's."""
    task_type: str = DEFAULT_TYPE
    description: str = ""
    after: tuple[str, ...] = ()
    slot: str | None = None
    """What it is about; "": what its parent is about; None: what the description mentions."""


@dataclass(frozen=True, slots=True)
class HTDAGAction:
    """A decision: decompose a task, or (`decompose_further` False) execute the plan as it is."""

    decompose_further: bool = False
    task_id: str = ROOT
    subtasks: tuple[ProposedTask, ...] = ()
    confidence: float = 1.0
    num_unreadable: int = 0
    """Subtasks in the reply that are no objects."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "decompose_further": self.decompose_further,
            "task_id": self.task_id,
            "num_subtasks": len(self.subtasks),
            "confidence": self.confidence,
        }


SAFE_ACTION = HTDAGAction(confidence=0.0)
"""What the LLM planner does where a reply cannot be read: nothing more is decomposed."""


def parse_action(text: str, confidence: float = 1.0) -> HTDAGAction:
    """Read a decision in either form; raise UnreadableAction for anything else."""
    text = text[:MAX_REPLY_CHARACTERS].strip()
    if text.lower().rstrip(".") == EXECUTE:
        return HTDAGAction(confidence=confidence)
    begin, end = text.find("{"), text.rfind("}")
    if begin >= 0:
        return _from_json(text[begin : end + 1], confidence)
    match = SHORT.match(text)
    if match is None:
        raise UnreadableAction("neither `go`, nor `ID: part, part`, nor JSON")
    try:
        items = parse_items(match["items"])
    except ValueError as error:
        raise UnreadableAction(str(error)) from None
    return HTDAGAction(True, normal_id(match["task"]), tuple(map(_proposed, items)), confidence)


def _proposed(item: Item) -> ProposedTask:
    return ProposedTask("", item.type, item.label, tuple(map(str, item.after)), item.slot)


def normal_id(task_id: str) -> str:
    """Return the id as the plan has it: `root` and nothing mean the request."""
    return ROOT if task_id.strip().lower() in ROOT_NAMES else task_id.strip()[:MAX_ID_CHARACTERS]


def _from_json(text: str, confidence: float) -> HTDAGAction:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableAction("the JSON cannot be read") from None
    if not isinstance(value, Mapping):
        raise UnreadableAction("the JSON is no object")
    raw = value.get("subtasks")
    parts = raw if isinstance(raw, list) else []
    subtasks = tuple(_subtask(part) for part in parts if isinstance(part, Mapping))
    task_id = normal_id(str(value.get("task_id", ROOT)))
    further = value.get("decompose_further") is True
    return HTDAGAction(further, task_id, subtasks, confidence, len(parts) - len(subtasks))


def _subtask(part: Mapping[str, Any]) -> ProposedTask:
    lists = [part[key] for key in AFTER_KEYS if isinstance(part.get(key), list)]
    after: list[Any] = lists[0] if lists else []
    return ProposedTask(
        str(part.get("task_id") or "").strip()[:MAX_ID_CHARACTERS],
        str(part.get("task_type") or DEFAULT_TYPE).strip()[:MAX_ID_CHARACTERS],
        str(part.get("description") or "")[:MAX_DESCRIPTION_CHARACTERS],
        tuple(str(name).strip()[:MAX_ID_CHARACTERS] for name in after),
    )


def short_action(task_id: str, items: tuple[Item, ...]) -> str:
    """Write a decomposition in the short form."""
    return f"{task_id}: {', '.join(item.text for item in items)}"
