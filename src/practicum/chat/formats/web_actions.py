"""The actions of a web agent: BrowserGym's grammar as a table, a strict parser and a writer.

An action is one call, `click("12")`, whose arguments are literals. Nothing is evaluated. `write_action` writes every
action in one way only, so two actions are the same if and only if their texts are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from practicum.environment import ToolCall
from practicum.errors import did_you_mean

MAX_ACTION_CHARS = 10_000
"""Characters of an action."""
MAX_NUMBER = 1_000_000
MAX_WAIT_MS = 10_000
BUTTONS = ("left", "middle", "right")
MODIFIERS = ("Alt", "Control", "ControlOrMeta", "Meta", "Shift")


class WebActionError(ValueError):
    """A text is not an action; the message is one sentence for the agent."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an action; one with a `default` may be left out."""

    name: str
    kind: str
    default: Any = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class WebVerb:
    """One kind of action: its parameters in the order in which they are written, and an example."""

    parameters: tuple[Parameter, ...]
    example: str


def _verb(example: str, *parameters: Parameter) -> WebVerb:
    return WebVerb(parameters, example)


def _optional(name: str, kind: str, default: Any) -> Parameter:
    return Parameter(name, kind, default, required=False)


_BID = Parameter("bid", "id")
_POINT = (Parameter("x", "number"), Parameter("y", "number"))
_BUTTON = _optional("button", "button", "left")
_CLICK = (_BID, _BUTTON, _optional("modifiers", "modifiers", []))
_KEY = Parameter("key", "key")

WEB_ACTIONS: dict[str, WebVerb] = {
    "click": _verb('click("12")', *_CLICK),
    "fill": _verb('fill("12", "text")', _BID, Parameter("value", "text"),
                  _optional("enable_autocomplete_menu", "flag", False)),
    "select_option": _verb('select_option("12", "blue")', _BID, Parameter("options", "texts")),
    "scroll": _verb("scroll(0, 300)", Parameter("delta_x", "number"), Parameter("delta_y", "number")),
    "go_back": _verb("go_back()"),
    "go_forward": _verb("go_forward()"),
    "goto": _verb('goto("http://site.test/page")', Parameter("url", "nonempty")),
    "send_msg_to_user": _verb('send_msg_to_user("Done.")', Parameter("text", "nonempty")),
    "noop": _verb("noop()", _optional("wait_ms", "milliseconds", 1000)),
    "hover": _verb('hover("12")', _BID),
    "press": _verb('press("12", "Enter")', _BID, Parameter("key_comb", "key")),
    "focus": _verb('focus("12")', _BID),
    "clear": _verb('clear("12")', _BID),
    "check": _verb('check("12")', _BID),
    "uncheck": _verb('uncheck("12")', _BID),
    "dblclick": _verb('dblclick("12")', *_CLICK),
    "drag_and_drop": _verb('drag_and_drop("12", "15")', Parameter("from_bid", "id"), Parameter("to_bid", "id")),
    "report_infeasible": _verb('report_infeasible("There is no such field.")', Parameter("reason", "nonempty")),
    "new_tab": _verb("new_tab()"),
    "tab_close": _verb("tab_close()"),
    "tab_focus": _verb("tab_focus(0)", Parameter("index", "index")),
    "scroll_at": _verb("scroll_at(50, 100, 0, 200)", *_POINT, Parameter("dx", "number"), Parameter("dy", "number")),
    "mouse_move": _verb("mouse_move(65, 158)", *_POINT),
    "mouse_down": _verb("mouse_down(65, 158)", *_POINT, _BUTTON),
    "mouse_up": _verb("mouse_up(65, 158)", *_POINT, _BUTTON),
    "mouse_click": _verb("mouse_click(65, 158)", *_POINT, _BUTTON),
    "mouse_dblclick": _verb("mouse_dblclick(65, 158)", *_POINT, _BUTTON),
    "mouse_drag_and_drop": _verb("mouse_drag_and_drop(10, 20, 60, 20)",
                                 *(Parameter(name, "number") for name in ("from_x", "from_y", "to_x", "to_y"))),
    "keyboard_press": _verb('keyboard_press("Enter")', _KEY),
    "keyboard_down": _verb('keyboard_down("Shift")', _KEY),
    "keyboard_up": _verb('keyboard_up("Shift")', _KEY),
    "keyboard_type": _verb('keyboard_type("text")', Parameter("text", "text")),
    "keyboard_insert_text": _verb('keyboard_insert_text("text")', Parameter("text", "text")),
}  # fmt: skip
"""The actions by name. HALO's grammar is the first nine; `hover`, `press` and `focus` are accepted there too.
BrowserGym's `upload_file` and `mouse_upload_file` are left out: they read local files."""
HALO_ACTIONS = tuple(WEB_ACTIONS)[:9]

_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "id": (lambda v: isinstance(v, str) and re.fullmatch(r"[A-Za-z0-9]{1,32}", v) is not None,
           'an element id in quotes, such as "12"'),
    "text": (lambda v: isinstance(v, str), "a text in quotes"),
    "nonempty": (lambda v: isinstance(v, str) and bool(v.strip()), "a text in quotes that is not empty"),
    "key": (lambda v: isinstance(v, str) and 0 < len(v) <= 64, 'the name of a key in quotes, such as "Enter"'),
    "texts": (lambda v: isinstance(v, str) or (isinstance(v, list) and bool(v) and _all_in(v, None)),
              "a text in quotes or a list of them"),
    "number": (lambda v: _is_number(v) and abs(v) <= MAX_NUMBER, f"a number within {MAX_NUMBER:,}"),
    "index": (lambda v: isinstance(v, int) and _is_number(v) and 0 <= v < 100, "a whole number from 0"),
    "milliseconds": (lambda v: _is_number(v) and 0 <= v <= MAX_WAIT_MS, f"a number from 0 to {MAX_WAIT_MS:,}"),
    "flag": (lambda v: isinstance(v, bool), "True or False"),
    "button": (lambda v: v in BUTTONS, f"one of {', '.join(BUTTONS)}"),
    "modifiers": (lambda v: isinstance(v, list) and _all_in(v, MODIFIERS), f"a list of {', '.join(MODIFIERS)}"),
}  # fmt: skip
"""What the arguments of each kind must be, as a test and in words."""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _all_in(values: list[Any], allowed: tuple[str, ...] | None) -> bool:
    """Whether these are texts, each of them allowed."""
    return all(isinstance(value, str) and (allowed is None or value in allowed) for value in values)


def checked_call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    """Return the call with arguments in the order of the grammar, without defaults; raise WebActionError if it is no
    action."""
    verb = WEB_ACTIONS.get(name)
    if verb is None:
        raise WebActionError(f"There is no action '{name[:40]}'.{did_you_mean(name[:40], WEB_ACTIONS)}")
    names = {parameter.name for parameter in verb.parameters}
    for argument in arguments:
        if argument not in names:
            raise WebActionError(f"{name} has no argument '{str(argument)[:40]}'; write it like {verb.example}.")
    kept: dict[str, Any] = {}
    for parameter in verb.parameters:
        if parameter.name not in arguments:
            if parameter.required:
                raise WebActionError(f"{name} lacks its argument '{parameter.name}'; write it like {verb.example}.")
            continue
        value = arguments[parameter.name]
        value = list(value) if isinstance(value, tuple) else value
        fits, words = _KINDS[parameter.kind]
        if not fits(value):
            raise WebActionError(f"The argument '{parameter.name}' of {name} must be {words}.")
        if parameter.required or value != parameter.default:
            kept[parameter.name] = value
    return ToolCall(name, kept)


def write_action(call: ToolCall) -> str:
    """Return the one text of an action; raise WebActionError if it is no action."""
    call = checked_call(call.name, call.arguments)
    written = []
    for parameter in WEB_ACTIONS[call.name].parameters:
        if parameter.name in call.arguments:
            value = _write_value(call.arguments[parameter.name])
            written.append(value if parameter.required else f"{parameter.name}={value}")
    return f"{call.name}({', '.join(written)})"


def _write_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def parse_action(text: str) -> ToolCall:
    """Return the action that a text is; raise WebActionError, and nothing else, if it is none."""
    text = text.strip()
    if len(text) > MAX_ACTION_CHARS:
        raise WebActionError(f"The action is longer than {MAX_ACTION_CHARS:,} characters.")
    if not text:
        raise WebActionError(f"The action is empty; write it like {WEB_ACTIONS['click'].example}.")
    name, positional, named = _Reader(text).call()
    verb = WEB_ACTIONS.get(name)
    if verb is None:
        raise WebActionError(f"There is no action '{name[:40]}'.{did_you_mean(name[:40], WEB_ACTIONS)}")
    if len(positional) > len(verb.parameters):
        raise WebActionError(f"{name} has too many arguments; write it like {verb.example}.")
    arguments = {parameter.name: value for parameter, value in zip(verb.parameters, positional, strict=False)}
    for key, value in named.items():
        if key in arguments:
            raise WebActionError(f"The argument '{key[:40]}' is given twice.")
        arguments[key] = value
    return checked_call(name, arguments)


_SPACE = re.compile(r"[ \t]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?(?![A-Za-z0-9_.])")
_ESCAPE = r"\\(?:[\"'\\/bfnrt]|u[0-9a-fA-F]{4})"
_TEXTS = {quote: re.compile(rf"{quote}((?:[^{quote}\\\x00-\x1f]|{_ESCAPE})*+){quote}") for quote in ('"', "'")}
_CONSTANTS = {"True": True, "true": True, "False": False, "false": False}


class _Reader:
    """Reads one call from left to right; the position never goes back, so time is linear."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def call(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return the name and the arguments, without and with names; nothing may follow."""
        name = self._match(_NAME)
        if name is None or not self._skip("("):
            raise WebActionError(f"An action is one call, such as {WEB_ACTIONS['click'].example}.")
        positional: list[Any] = []
        named: dict[str, Any] = {}
        while not self._skip(")"):
            if (positional or named) and not self._skip(","):
                raise WebActionError("The arguments of an action are separated by commas and closed by ')'.")
            key = self._keyword()
            if key is not None and key in named:
                raise WebActionError(f"The argument '{key[:40]}' is given twice.")
            if key is None and named:
                raise WebActionError("Arguments with a name come last.")
            value = self._value(allow_list=True)
            if key is None:
                positional.append(value)
            else:
                named[key] = value
        self._match(_SPACE)
        if self.position != len(self.text):
            raise WebActionError("One reply has one action, and nothing follows it.")
        return name, positional, named

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self.text, self.position)
        if match is None:
            return None
        self.position = match.end()
        return match[0]

    def _skip(self, symbol: str) -> bool:
        self._match(_SPACE)
        if not self.text.startswith(symbol, self.position):
            return False
        self.position += 1
        return True

    def _keyword(self) -> str | None:
        """The name before an argument's '='; None if there is none."""
        self._match(_SPACE)
        start, name = self.position, self._match(_NAME)
        if name is not None and self._skip("="):
            return name
        self.position = start
        return None

    def _value(self, allow_list: bool) -> Any:
        self._match(_SPACE)
        first = self.text[self.position : self.position + 1]
        if first in _TEXTS:
            return self._string(first)
        if first == "[" and allow_list:
            return self._list()
        start = self.position
        match = _NUMBER.match(self.text, start)
        if match is not None:
            self.position = match.end()
            return self._number(match)
        constant = self._match(_NAME)
        if constant in _CONSTANTS:
            return _CONSTANTS[constant]
        raise WebActionError("An argument is a text in quotes, a number, True, False, or a list of these.")

    def _number(self, match: re.Match[str]) -> int | float:
        if len(match[0]) > 40:
            raise WebActionError("A number in the action is too long.")
        if match[1] is None and match[2] is None:
            return int(match[0])
        value = float(match[0])
        if abs(value) > MAX_NUMBER:
            raise WebActionError("A number in the action is too large.")
        return value

    def _string(self, quote: str) -> str:
        match = _TEXTS[quote].match(self.text, self.position)
        if match is None:
            raise WebActionError("A text in the action is not closed, or has an escape that is not known.")
        self.position = match.end()
        body = match[1]
        if quote == "'":
            body = re.sub(r"\\.|\"", lambda piece: {"\\'": "'", '"': '\\"'}.get(piece[0], piece[0]), body)
        else:
            body = re.sub(r"\\.", lambda piece: "'" if piece[0] == "\\'" else piece[0], body)
        value = str(json.loads(f'"{body}"'))
        try:
            value.encode()
        except UnicodeEncodeError:
            raise WebActionError("A text in the action escapes half a character.") from None
        return value

    def _list(self) -> list[Any]:
        self.position += 1
        items: list[Any] = []
        while not self._skip("]"):
            if items and not self._skip(","):
                raise WebActionError("The items of a list are separated by commas and closed by ']'.")
            items.append(self._value(allow_list=False))
        return items
