"""The shortest text of a page, for small models: the goal, what was done, and one line per element."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from practicum.environments.web.observation import ACTIONABLE_ROLES, MAX_NAME_CHARS, VALUE_ROLES, Node, one_line

TICKED_ROLES = ("checkbox", "radio", "switch")
LOOK = re.compile(r"(?!box=)\w+=(['\"])(.*)\1", re.DOTALL)
"""An attribute among a node's properties, such as `class='star'`; states such as `checked=true` have no quotes."""
MAX_TEXT_CHARS = 400


def brief_text(
    goal: str,
    title: str,
    nodes: Sequence[Node],
    done: Sequence[str] = (),
    last_error: str = "",
    notes: Sequence[str] = (),
    with_dom: bool = False,
) -> str:
    """Return the goal, what was done, the page's title, alerts, and one line per element.

    Each id follows its element's name, so that a small model finds the id of a name by copying what followed it.
    A control's value follows its name. Options of comboboxes are left out. With `with_dom`, pages are not written for
    the accessibility tree: texts and options are shown, and an element without a name is named by the text in it.
    """
    lines = [goal, *(f"- {action}" for action in done), *([f"! {last_error}"] if last_error else [])]
    lines += [*(f"* {note}" for note in notes), f"# {one_line(title)}"]
    return "\n".join([*lines, *(_dom_lines(nodes) if with_dom else _element_lines(nodes))])


def element_line(node: Node) -> str:
    """Return an element with its value and its id: `Quantity = 1 [12]`."""
    return f"{_with_value(node, one_line(node.name)[:MAX_NAME_CHARS] or node.role)} [{node.bid}]"


def _element_lines(nodes: Sequence[Node]) -> Iterator[str]:
    in_alert: int | None = None
    for node in nodes:
        if in_alert is not None and node.depth <= in_alert:
            in_alert = None
        if node.role == "alert":
            in_alert = node.depth
        if node.bid and node.role != "option":
            yield element_line(node)
        elif in_alert is not None and not node.bid and node.name:
            yield f"* {one_line(node.name)}"


def _dom_lines(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield the lines of a page with its texts; texts that name no element have own lines, neighbours a joint one."""
    texts: list[str] = []
    named_by_text: set[int] = set()
    for index, node in enumerate(nodes):
        if node.role == "StaticText" and index not in named_by_text:
            texts.append(one_line(node.name))
        if not node.bid:
            continue
        own = [] if node.name else _texts_inside(nodes, index)
        named_by_text.update(own)
        label = one_line(node.name) or " ".join(one_line(nodes[text].name) for text in own)
        has_children = index + 1 < len(nodes) and nodes[index + 1].depth > node.depth
        if not label and has_children and node.role not in ACTIONABLE_ROLES:
            continue  # a box around others
        if texts:
            yield " ".join(texts)[:MAX_TEXT_CHARS]
            texts = []
        yield f"{_with_value(node, label[:MAX_NAME_CHARS] or _look(node))} [{node.bid}]"
    if texts:
        yield " ".join(texts)[:MAX_TEXT_CHARS]


def _texts_inside(nodes: Sequence[Node], index: int) -> list[int]:
    """Indices of the texts directly inside a node and before its first element; none where it is the whole page."""
    inside: list[int] = []
    for position in range(index + 1, len(nodes)):
        if nodes[position].depth != nodes[index].depth + 1 or nodes[position].role != "StaticText":
            break
        inside.append(position)
    return [] if nodes[index].depth <= 1 else inside


def _look(node: Node) -> str:
    """What an element without a name looks like: its role and attributes."""
    looks = [match[2] for match in map(LOOK.fullmatch, node.properties) if match]
    role = [] if looks and node.role in ("generic", "image") else [node.role]
    return " ".join([*role, *looks])[:MAX_NAME_CHARS]


def _with_value(node: Node, name: str) -> str:
    if node.role in TICKED_ROLES:
        return f"{name} = {'yes' if 'checked=true' in node.properties else 'no'}"
    return f"{name} = {one_line(node.value)}" if node.role in VALUE_ROLES else name
