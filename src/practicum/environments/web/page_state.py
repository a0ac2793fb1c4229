"""The state of a page as the hierarchy compares it: finer than a state key, and without element ids.

A state key has the first ten elements and no values, so filling in a form leaves it as it is. The state here has every
node with its value, so that an action which did something is told from one that did nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace

from practicum.environment import ToolCall
from practicum.environments.web.observation import Node, StateKey, one_line

FOCUSED = "focused"
"""A property that says nothing about what an action did."""


def page_state(key: StateKey, nodes: Sequence[Node]) -> str:
    """Return a state key without its error, and a hash of all nodes with their values: equal for equal pages."""
    content = [[node.role, node.name, node.value, [p for p in node.properties if p != FOCUSED]] for node in nodes]
    digest = hashlib.sha256(json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace")).hexdigest()
    return f"{replace(key, has_error=False)}#{digest[:16]}"


def normalised_goal(goal: str) -> str:
    """Return a goal without differences of case, spacing and closing punctuation."""
    return re.sub(r"[\s.!?]+$", "", one_line(goal).casefold())


def named_like(nodes: Sequence[Node], role: str, name: str) -> list[Node]:
    """Return the nodes with an id that have a role and a name, in the order of the page."""
    return [node for node in nodes if node.bid and node.role == role and node.name == name]


def bid_of(call: ToolCall) -> str | None:
    """Return the id of the element that an action is about; None for one without an element."""
    bid = call.arguments.get("bid")
    return str(bid) if bid is not None else None
