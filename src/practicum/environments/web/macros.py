"""Macros: scripted sequences of actions that a manager starts by naming one as its skill.

A skill is written as a call with literals, `fill_form(fields={"Colour": "red"}, submit="Add to cart")`. Elements are
found by role and name on the page of each step; where one is missing, or a step fails or changes nothing, the macro is
given up and the worker goes on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.environment import ToolCall
from practicum.environments.web.observation import VALUE_ROLES, Node

MAX_SKILL_CHARS = 2_000
MAX_MACRO_STEPS = 20
CONTROLS = (*sorted(VALUE_ROLES), "checkbox", "radio", "switch")
BUTTONS = ("button", "link")
FIELDS = ("textbox", "searchbox", "combobox", "spinbutton", "button")
DAYS = ("button", "gridcell", "link", "option", "radio")


@dataclass(frozen=True, slots=True)
class MacroStep:
    """What one step does: on an element of one of the roles, whose name is `name` or else contains it, or whose name
    matches the pattern `hint`.

    A control gets `value` (None: it is clicked); one that has it already is skipped. With `is_new`, the element is the
    first one that was not on the page on which the macro began.
    """

    roles: Sequence[str]
    name: str = ""
    hint: str = ""
    value: str | bool | None = None
    is_new: bool = False

    def find(self, nodes: Sequence[Node], at_start: frozenset[tuple[str, str]]) -> Node | None:
        """Return the element; None where the page has none."""
        candidates = [node for node in nodes if node.bid and node.role.lower() in self.roles]
        if self.is_new:
            candidates = [node for node in candidates if node.name and (node.role, node.name) not in at_start]
        if self.hint:
            candidates = [node for node in candidates if re.search(self.hint, node.name, re.I)]
        if self.name:
            name = self.name.casefold()
            exact = [node for node in candidates if node.name.casefold() == name]
            candidates = exact or [node for node in candidates if name in node.name.casefold()]
        return candidates[0] if candidates else None

    def call(self, node: Node) -> ToolCall | None:
        """Return the action on its element; None where there is nothing to do."""
        role = node.role.lower()
        if self.value is None:
            return ToolCall("click", {"bid": node.bid})
        if role in ("checkbox", "radio", "switch"):
            is_checked = "checked=true" in node.properties
            return None if is_checked == bool(self.value) else ToolCall("click", {"bid": node.bid})
        if node.value == str(self.value):
            return None
        if role == "combobox":
            return ToolCall("select_option", {"bid": node.bid, "options": str(self.value)})
        return ToolCall("fill", {"bid": node.bid, "value": str(self.value)})


Parameters = Mapping[str, Any]


def _search_and_open_first_result(parameters: Parameters) -> list[MacroStep]:
    return [
        MacroStep(("searchbox", "textbox"), hint="search|find", value=str(parameters["query"])),
        MacroStep(("button",), hint="search|find|go"),
        MacroStep(("link",), is_new=True),
    ]


def _fill_contact_form(parameters: Parameters) -> list[MacroStep]:
    fields = ("email", "name", "phone")
    steps = [MacroStep(("textbox",), hint=rf"\b{name}", value=str(parameters[name])) for name in fields]
    return [*steps, MacroStep(("button",), hint="submit|send|save|continue")]


def _select_date_range(parameters: Parameters) -> list[MacroStep]:
    return [
        MacroStep(FIELDS, hint="start|check.?in|from|depart"),
        MacroStep(DAYS, str(parameters["start"])),
        MacroStep(FIELDS, hint="end|check.?out|until|return"),
        MacroStep(DAYS, str(parameters["end"])),
    ]


def _fill_form(parameters: Parameters) -> list[MacroStep]:
    fields = parameters["fields"]
    if not isinstance(fields, dict):
        raise ValueError("fields is a mapping of names of controls to values")
    steps = [
        MacroStep(CONTROLS, str(name), value=value if isinstance(value, bool) else str(value))
        for name, value in fields.items()
    ]
    return [*steps, MacroStep(BUTTONS, str(parameters["submit"]))]


def _open_links(parameters: Parameters) -> list[MacroStep]:
    names = parameters["names"]
    if not isinstance(names, list) or not names:
        raise ValueError("names is a list of names of links")
    return [MacroStep(("link", "tab", "menuitem"), str(name)) for name in names]


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro: its parameters, all of which must be given, and its steps."""

    example: str
    parameters: tuple[str, ...]
    steps: Callable[[Parameters], list[MacroStep]]


MACROS: Mapping[str, Macro] = {
    "search_and_open_first_result": Macro(
        'search_and_open_first_result(query="red mug")', ("query",), _search_and_open_first_result
    ),
    "fill_contact_form": Macro(
        'fill_contact_form(email="a@b.org", name="Ann", phone="555")', ("email", "name", "phone"), _fill_contact_form
    ),
    "select_date_range": Macro('select_date_range(start="12", end="15")', ("start", "end"), _select_date_range),
    "fill_form": Macro(
        'fill_form(fields={"Colour": "red", "Gift wrap": true}, submit="Add to cart")', ("fields", "submit"), _fill_form
    ),
    "open_links": Macro('open_links(names=["Books", "Green book"])', ("names",), _open_links),
}
"""HALO's three macros, then two that fit sites of links and forms."""


class ActiveMacro:
    """A macro that runs: its steps, and which one is next."""

    def __init__(self, name: str, steps: Sequence[MacroStep], nodes: Sequence[Node]) -> None:
        self.name, self.steps = name, list(steps)[:MAX_MACRO_STEPS]
        self._at_start = frozenset((node.role, node.name) for node in nodes)

    def next_call(self, nodes: Sequence[Node]) -> ToolCall | None:
        """Return the next action; None where it has ended, or where an element is missing (`steps` is then not empty).
        Steps with nothing to do are skipped."""
        while self.steps:
            node = self.steps[0].find(nodes, self._at_start)
            if node is None:
                return None
            call = self.steps[0].call(node)
            self.steps.pop(0)
            if call is not None:
                return call
        return None


def start_macro(skill: str, nodes: Sequence[Node]) -> ActiveMacro | None:
    """Return the macro of a skill; None where the text names none, or without what it needs."""
    parsed = parse_skill(skill)
    if parsed is None:
        return None
    name, parameters = parsed
    macro = MACROS[name]
    if set(parameters) != set(macro.parameters):
        return None
    try:
        return ActiveMacro(name, macro.steps(parameters), nodes)
    except ValueError:
        return None


def parse_skill(skill: str) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the parameters of a skill, which may be a name alone; None where it is no macro.

    JSON's true, false and null are read too.
    """
    text = skill.strip()[:MAX_SKILL_CHARS]
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if isinstance(node, ast.Name):
        return (node.id, {}) if node.id in MACROS else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in MACROS or node.args:
        return None
    try:
        return node.func.id, {str(word.arg): _literal(word.value) for word in node.keywords if word.arg}
    except (ValueError, TypeError, RecursionError):
        return None


def _literal(node: ast.expr) -> Any:
    """The value of a literal; ValueError where it is none."""
    words = {"true": True, "false": False, "null": None}
    if isinstance(node, ast.Name) and node.id in words:
        return words[node.id]
    if isinstance(node, ast.Dict) and all(node.keys):
        return {_literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.List):
        return [_literal(item) for item in node.elts]
    return ast.literal_eval(node)
