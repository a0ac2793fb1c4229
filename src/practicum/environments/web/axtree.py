"""From Chromium's accessibility tree to the nodes that an agent sees.

Chromium gives two lists over its debugging protocol: `Accessibility.getFullAXTree`, and, where it is asked for,
`DOMSnapshot.captureSnapshot`, which knows elements without a role: what has a click listener, and shapes of SVG.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from practicum.environments.web.observation import ACTIONABLE_ROLES, Node, one_line

SKIPPED_ROLES = frozenset(("none", "InlineTextBox", "LineBreak", "MenuListPopup", "LayoutTable", "ListMarker"))
"""Roles that are not shown; their children are, in their place."""
SKIPPED_WITHOUT_NAME = frozenset(
    ("generic", "LabelText", "form", "paragraph", "Section", "rowgroup", "emphasis", "strong")
)
"""Roles that are not shown where they have neither a name nor a property."""
SHAPES = frozenset(("circle", "ellipse", "rect", "polygon", "polyline", "path", "line", "text"))
SHAPE_ATTRIBUTES = ("fill", "stroke", "class")
LOOK_ATTRIBUTES = ("class", "style")
"""Attributes that are shown of elements without a name, where the document is read too."""
MAX_ATTRIBUTE_CHARS = 80
FLAGS = ("focused", "required", "disabled", "modal", "multiselectable", "readonly")
"""Properties that are shown by their name where they are true."""
VALUES = ("checked", "pressed", "expanded", "selected", "hasPopup", "valuemin", "valuemax", "valuetext")
"""Properties that are shown with their value; false ones where that says something."""
FALSE_IS_SHOWN = frozenset(("checked", "pressed", "expanded"))
MAX_NODES = 5_000
MAX_TEXT_CHARS = 2_000
"""Characters of one name or value."""


@dataclass(frozen=True, slots=True)
class DomElement:
    """What the document knows about an element: its tag, whether it has a click listener, its box in pixels."""

    tag: str
    clickable: bool = False
    box: tuple[int, int, int, int] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    shapes: tuple[int, ...] = ()
    """Backend ids of the shapes below an SVG element."""


AssignId = Callable[[int], str]
"""Gives the backend id of an element its `bid`."""


def page_nodes(
    ax_nodes: Sequence[Mapping[str, Any]],
    assign_id: AssignId,
    dom: Mapping[int, DomElement] | None = None,
    frames: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
) -> tuple[Node, ...]:
    """Return the shown nodes in the order of the page, at most MAX_NODES.

    `frames` are the trees of frames within the page by the backend id of the element that holds them.
    """
    return _Walker(assign_id, dom or {}, frames or {}).walk(ax_nodes)


class _Walker:
    def __init__(
        self,
        assign_id: AssignId,
        dom: Mapping[int, DomElement],
        frames: Mapping[int, Sequence[Mapping[str, Any]]],
    ) -> None:
        self.assign_id, self.dom, self.frames = assign_id, dom, frames
        self.shown: list[Node] = []
        self.shapes: dict[int, str] = {}
        """Text of the shapes that are shown already, by backend id."""

    def walk(self, ax_nodes: Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
        if ax_nodes:
            self._tree(ax_nodes, 0)
        return tuple(self.shown)

    def _tree(self, ax_nodes: Sequence[Mapping[str, Any]], depth: int) -> None:
        """Walk a tree by hand: a page may nest deeper than Python calls."""
        by_id = {node["nodeId"]: node for node in ax_nodes}
        stack: list[tuple[Mapping[str, Any], int, str]] = [(ax_nodes[0], depth, "")]
        visited: set[str] = set()
        while stack and len(self.shown) < MAX_NODES:
            node, depth, parent_name = stack.pop()
            if node["nodeId"] in visited:
                continue
            visited.add(node["nodeId"])
            shown = self._node(node, depth, parent_name)
            below = depth
            name = parent_name
            if shown is not None:
                self.shown.append(shown)
                below, name = depth + 1, f"{shown.name} {shown.value}"
            backend = node.get("backendDOMNodeId", 0)
            name = self.shapes.get(backend, name)
            for shape in self.dom[backend].shapes if backend in self.dom else ():
                self.shown.append(self._shape(shape, below))
            if self.frames.get(backend):
                self._tree(self.frames[backend], below)
            children = [by_id[child] for child in node.get("childIds", ()) if child in by_id]
            stack.extend((child, below, name) for child in reversed(children))

    def _node(self, node: Mapping[str, Any], depth: int, parent_name: str) -> Node | None:
        """The node as it is shown; None where only its children are."""
        role = str(node.get("role", {}).get("value", "none"))
        name = _text(node, "name")
        backend = node.get("backendDOMNodeId")
        if backend in self.shapes:
            return None
        element = self.dom.get(backend) if backend is not None else None
        clickable = element is not None and element.clickable
        if node.get("ignored") or role in SKIPPED_ROLES:
            if not clickable or element is None or element.tag in ("html", "body"):
                return None
            role, name = "generic", ""
        if role == "StaticText":
            return None if not name.strip() or one_line(name) in one_line(parent_name) else Node(role, name, "", depth)
        properties = _properties(node)
        if role in SKIPPED_WITHOUT_NAME and not clickable and not name and not properties:
            return None
        if role == "RootWebArea":
            return Node(role, name, "", depth)
        if element is not None and not name:
            properties = (*properties, *_attributes(element, LOOK_ATTRIBUTES))
        if element is not None and element.box is not None:
            properties = (*properties, _box(element))
        named = self.dom or clickable or role in ACTIONABLE_ROLES or _is_focusable(node)
        bid = self.assign_id(backend) if backend is not None and named else ""
        return Node(role, name, bid, depth, _text(node, "value"), properties, clickable and role == "generic")

    def _shape(self, backend: int, depth: int) -> Node:
        element = self.dom[backend]
        self.shapes[backend] = element.text
        properties = _attributes(element, SHAPE_ATTRIBUTES)
        if element.box is not None:
            properties = (*properties, _box(element))
        return Node(element.tag, element.text, self.assign_id(backend), depth, "", properties, element.clickable)


def _is_focusable(node: Mapping[str, Any]) -> bool:
    return any(item["name"] == "focusable" and item["value"].get("value") for item in node.get("properties", ()))


def _text(node: Mapping[str, Any], key: str) -> str:
    value = node.get(key, {}).get("value")
    return "" if value is None else str(value)[:MAX_TEXT_CHARS]


def _attributes(element: DomElement, names: Sequence[str]) -> tuple[str, ...]:
    values = {name: one_line(element.attributes.get(name, ""))[:MAX_ATTRIBUTE_CHARS] for name in names}
    return tuple(f"{name}={value!r}" for name, value in values.items() if value)


def _box(element: DomElement) -> str:
    assert element.box is not None
    return f"box=({', '.join(map(str, element.box))})"


def _properties(node: Mapping[str, Any]) -> tuple[str, ...]:
    values = {item["name"]: item.get("value", {}).get("value") for item in node.get("properties", ())}
    flags = tuple(name for name in FLAGS if values.get(name) is True)
    shown = []
    for name in VALUES:
        value = values.get(name)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if value is not None and (text != "false" or name in FALSE_IS_SHOWN):
            shown.append(f"{name}={text}")
    return (*flags, *shown)


def dom_elements(snapshot: Mapping[str, Any]) -> dict[int, DomElement]:
    """Return the elements of a document by their backend ids, from a `DOMSnapshot.captureSnapshot`."""
    if not snapshot.get("documents"):
        return {}
    strings, document = snapshot["strings"], snapshot["documents"][0]
    nodes, layout = document["nodes"], document["layout"]
    boxes = {
        index: tuple(round(value) for value in bounds)
        for index, bounds in zip(layout["nodeIndex"], layout["bounds"], strict=True)
    }
    clickable = set(nodes.get("isClickable", {}).get("index", ()))
    names = [strings[name].lower() if name >= 0 else "" for name in nodes["nodeName"]]
    parents, backends = nodes["parentIndex"], nodes["backendNodeId"]
    texts, shapes = _texts_and_shapes(names, parents, nodes["nodeValue"], strings, boxes)
    elements: dict[int, DomElement] = {}
    for index, name in enumerate(names):
        if nodes["nodeType"][index] != 1:
            continue
        attributes = [strings[item] if item >= 0 else "" for item in nodes["attributes"][index]]
        box = boxes.get(index)
        elements[backends[index]] = DomElement(
            tag=name,
            clickable=index in clickable and box is not None,
            box=(box[0], box[1], box[2], box[3]) if box is not None and box[2] and box[3] else None,
            attributes=dict(zip(attributes[::2], attributes[1::2], strict=True)),
            text=texts.get(index, "") if name in SHAPES else "",
            shapes=tuple(backends[shape] for shape in shapes.get(index, ())),
        )
    return elements


def _texts_and_shapes(
    names: Sequence[str],
    parents: Sequence[int],
    values: Sequence[int],
    strings: Sequence[str],
    boxes: Mapping[int, Any],
) -> tuple[dict[int, str], dict[int, list[int]]]:
    """The text directly below each element, and the visible shapes below each outermost SVG element, by index."""
    texts: dict[int, str] = {}
    shapes: dict[int, list[int]] = {}
    svg_of: dict[int, int] = {}
    for index, name in enumerate(names):
        parent = parents[index]
        if name == "#text" and values[index] >= 0:
            texts[parent] = one_line(f"{texts.get(parent, '')} {strings[values[index]]}")[:MAX_TEXT_CHARS]
        root = svg_of.get(parent, index if name == "svg" else -1)
        if root >= 0:
            svg_of[index] = root
            if name in SHAPES and index in boxes:
                shapes.setdefault(root, []).append(index)
    return texts, shapes
