"""The reply format `gui`: one action on a screen, written as a Python call."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.chat.formats.hermes import finite_float
from practicum.environment import Action, Message, ToolCall
from practicum.errors import UserError, did_you_mean

GUI_ACTIONS: dict[str, tuple[frozenset[str], frozenset[str], str]] = {
    "click": (frozenset({"box"}), frozenset(), "click(box=[x1, y1, x2, y2])"),
    "double_click": (frozenset({"box"}), frozenset(), "double_click(box=[x1, y1, x2, y2])"),
    "type": (frozenset({"text"}), frozenset(), 'type(text="...")'),
    "scroll": (frozenset({"direction"}), frozenset({"box"}), 'scroll(direction="down", box=[x1, y1, x2, y2])'),
    "press": (frozenset({"key"}), frozenset(), 'press(key="enter")'),
    "wait": (frozenset(), frozenset(), "wait()"),
    "finished": (frozenset({"answer"}), frozenset(), 'finished(answer="...")'),
}
"""The actions on a screen: the arguments that each needs, those it may have, and how it is written."""
DIRECTIONS = ("up", "down", "left", "right")
MAX_COORDINATE = 1_000_000
"""In pixels; no screen is wider or higher."""


class GuiFormat:
    """`gui`: a thought, then one line `Action: ...` such as `click(box=[10, 20, 60, 40])`; `finished` ends.

    The line is one Python call with keyword literals. It is parsed as syntax and nothing in it is evaluated: numbers
    are those of JSON, and strings have only the escapes that JSON and Python share.
    """

    name = "gui"
    stop: tuple[str, ...] = ()
    schema_in_template = False
    quoted = re.compile(r""""(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?""")
    """A string, closed or not: what follows a quote belongs to it, so a line is scanned once."""
    escape = r"\\(?:[\"'\\bfnrt]|u[0-9a-fA-F]{4})"
    text = re.compile(rf""""(?:[^"\\\x00-\x1f]|{escape})*+"|'(?:[^'\\\x00-\x1f]|{escape})*+'""")
    number = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
    shape = re.compile(r"[A-Za-z_]+\([A-Za-z0-9_ \[\]=,.+\"-]{0,200}\)")
    """An action without its strings; so short that no nesting can exhaust the parser."""

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        names = {"finished", *(tool["function"]["name"] for tool in tools)}
        listed = "\n".join(form for name, (_, _, form) in GUI_ACTIONS.items() if name in names)
        return f"Reply with a line 'Thought: ...' if you like, then one line 'Action: ...' with one of:\n{listed}"

    def parse(self, text: str, has_tools: bool) -> Action:
        pieces = re.split(r"^Action:", text, flags=re.M)
        if len(pieces) != 2:
            return Action(text, error="The reply needs exactly one line 'Action: ...'.")
        thought, line = pieces[0].strip().removeprefix("Thought:").strip(), pieces[1].strip()
        if "\n" in line:
            return Action(text, error="The Action is one line, and the last one.")
        call = self._call(line)
        if isinstance(call, str):
            return Action(text, error=call)
        if call.name == "finished":
            return Action(text, content=call.arguments["answer"], thought=thought)
        if not has_tools:
            return Action(text, error="There is no screen here; reply with finished(answer=...).")
        return Action(text, calls=(call,), thought=thought)

    def _call(self, line: str) -> ToolCall | str:
        unreadable = f"The Action cannot be read; write it like {GUI_ACTIONS['click'][2]}."
        if not all(self.text.fullmatch(string) for string in self.quoted.findall(line)):
            return "A text in the Action is not closed, or has an escape that is not known."
        if not self.shape.fullmatch(self.quoted.sub('""', line)):
            return unreadable
        try:
            call = ast.parse(line, mode="eval").body
        except (SyntaxError, ValueError):
            return unreadable
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return unreadable
        arguments: dict[str, Any] = {}
        for keyword in call.keywords:
            name = str(keyword.arg)
            if name in arguments:
                return f"The argument '{name}' is given twice."
            try:
                arguments[name] = self._value(line, keyword.value)
            except ValueError:
                return f"The argument '{name}' must be a text in quotes or a list of finite numbers."
        if call.args:
            return f"Give every argument by its name, e.g. {GUI_ACTIONS['click'][2]}."
        error = gui_action_error(call.func.id, arguments)
        return ToolCall(call.func.id, arguments) if error is None else error

    def _value(self, line: str, node: ast.expr) -> Any:
        """Return the value of an argument as it is written; raise ValueError for anything but literals."""
        if isinstance(node, ast.List):
            return [self._literal(line, item) for item in node.elts]
        return self._literal(line, node)

    def _literal(self, line: str, node: ast.expr) -> str | int | float:
        written = ast.get_source_segment(line, node) or ""
        if self.number.fullmatch(written):
            return int(written) if written.lstrip("-").isdigit() else finite_float(written)
        if not self.text.fullmatch(written):
            raise ValueError(f"{written} is no literal")
        value = str(ast.literal_eval(written))
        value.encode()  # a lone surrogate could not be shown again
        return value

    def write(self, action: Action, has_tools: bool) -> str:
        calls = action.calls or (ToolCall("finished", {"answer": action.content}),)
        error = gui_action_error(calls[0].name, calls[0].arguments) if len(calls) == 1 else "One reply is one action."
        if error is not None:
            raise UserError(f"The reply format 'gui' cannot write this reply: {error}")
        arguments = ", ".join(
            f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in calls[0].arguments.items()
        )
        thought = f"Thought: {action.thought}\n" if action.thought else ""
        return f"{thought}Action: {calls[0].name}({arguments})"

    def observe(self, name: str, text: str) -> Message:
        return Message("user", text)


def gui_action_error(name: str, arguments: Mapping[str, Any]) -> str | None:
    """Return why these are not the name and arguments of an action on a screen; None where they are."""
    if name not in GUI_ACTIONS:
        return f"There is no action '{name[:40]}'.{did_you_mean(name[:40], GUI_ACTIONS)}"
    needed, optional, form = GUI_ACTIONS[name]
    if not needed <= set(arguments) <= needed | optional:
        return f"Write {name} like {form}."
    for key, value in arguments.items():
        if key == "box":
            if not isinstance(value, (list, tuple)) or not all(_is_pixel(item) for item in value):
                return f"A box is a list of numbers, none beyond {MAX_COORDINATE}."
            if len(value) not in (2, 4) or (len(value) == 4 and (value[0] > value[2] or value[1] > value[3])):
                return "A box is [x1, y1, x2, y2] with x1 <= x2 and y1 <= y2, or a point [x, y]."
        elif not isinstance(value, str):
            return f"The argument '{key}' is a text in quotes."
        elif key == "direction" and value not in DIRECTIONS:
            return f"The direction is one of {', '.join(DIRECTIONS)}."
        elif key in ("key", "answer") and not value.strip():
            return f"The {key} is empty."
    return None


def _is_pixel(value: Any) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and -MAX_COORDINATE <= value <= MAX_COORDINATE
    )
