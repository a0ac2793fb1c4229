"""Reply formats: how an action is written as text, and read back strictly.

A format never guesses. A reply that it cannot read comes back as an action with `error` set to one
sentence that the agent is shown; no call is ever made of a broken reply.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from practicum.environment import Action, Message, ToolCall
from practicum.errors import UserError, did_you_mean


class Format(Protocol):
    """One way of writing actions."""

    name: str
    stop: tuple[str, ...]
    schema_in_template: bool
    """Whether the chat template lists the tools (else `instructions` does)."""

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str: ...
    def parse(self, text: str, has_tools: bool) -> Action: ...
    def write(self, action: Action, has_tools: bool) -> str: ...
    def observe(self, name: str, text: str) -> Message: ...


class HermesFormat:
    """`hf`: tool calls as JSON between <tool_call> tags; a reply without any is the final answer."""

    name = "hf"
    stop: tuple[str, ...] = ()
    schema_in_template = True

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        return ""

    def parse(self, text: str, has_tools: bool) -> Action:
        before, *opened = text.split("<tool_call>")
        if "</tool_call>" in before or any(piece.count("</tool_call>") != 1 for piece in opened):
            return Action(text, error="Every <tool_call> needs its own </tool_call>.")
        blocks = [piece.partition("</tool_call>")[0] for piece in opened]
        if not blocks:
            content = text.strip()
            return Action(text, content=content, error=None if content else "The reply was empty.")
        if not has_tools:
            return Action(text, error="There are no tools here; reply in plain text.")
        calls = []
        for block in blocks:
            call = _json_call(block)
            if isinstance(call, str):
                return Action(text, error=call)
            calls.append(call)
        return Action(text, calls=tuple(calls), thought=before.strip())

    def write(self, action: Action, has_tools: bool) -> str:
        parts = [action.thought] if action.thought else []
        for call in action.calls:
            body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
            parts.append(f"<tool_call>{body}</tool_call>")
        if not action.calls:
            parts.append(action.content)
        return "\n".join(parts)

    def observe(self, name: str, text: str) -> Message:
        return Message("tool", text, name=name)


class ReactFormat:
    """`react`: Thought / Action / Input lines; `Answer:` ends.

    Where there are tools, `Action:` names one and `Input:` is its JSON. In a world of commands,
    `Action:` is the command itself.
    """

    name = "react"
    stop: tuple[str, ...] = ("\nObservation:",)
    schema_in_template = False

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        if not tools:
            return "Reply with a line 'Thought: ...' and then a line 'Action: ...' holding one command."
        listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        return (
            f"Tools:\n{listed}\n"
            "To use one, reply with the lines 'Thought: ...', 'Action: <tool>' and 'Input: <JSON arguments>'. "
            "When you know the answer, reply 'Answer: ...'."
        )

    def parse(self, text: str, has_tools: bool) -> Action:
        text_read = text.split("\nObservation:")[0]
        fields = self._fields(text_read)
        if isinstance(fields, str):
            return Action(text, error=fields)
        thought = fields.get("thought", "")
        if "answer" in fields:
            if "action" in fields:
                return Action(text, error="Give either an Action or an Answer, not both.")
            if not fields["answer"]:
                return Action(text, error="The Answer is empty.")
            return Action(text, content=fields["answer"], thought=thought)
        if "action" not in fields:
            return Action(text, error="The reply needs a line 'Action: ...' or 'Answer: ...'.")
        if not fields["action"]:
            return Action(text, error="The Action is empty.")
        if not has_tools:
            if "input" in fields:
                return Action(text, error="There are no tools here; put the whole command on the Action line.")
            return Action(text, content=fields["action"], thought=thought)
        if "input" not in fields:
            return Action(text, error="The Action needs an 'Input: {...}' line with its JSON arguments.")
        call = _arguments(fields["action"], fields["input"])
        if isinstance(call, str):
            return Action(text, error=call)
        return Action(text, calls=(call,), thought=thought)

    @staticmethod
    def _fields(text: str) -> dict[str, str] | str:
        pieces = re.split(r"^(Thought|Action|Input|Answer):", text, flags=re.M)
        fields: dict[str, str] = {}
        for label, body in zip(pieces[1::2], pieces[2::2], strict=True):
            if label.lower() in fields:
                return f"The reply has more than one '{label}:'; give exactly one."
            fields[label.lower()] = body.strip()
        if pieces[0].strip() and "thought" not in fields:
            fields["thought"] = pieces[0].strip()
        return fields

    def write(self, action: Action, has_tools: bool) -> str:
        lines = [f"Thought: {action.thought}"] if action.thought else []
        for call in action.calls:
            lines += [f"Action: {call.name}", f"Input: {json.dumps(dict(call.arguments), ensure_ascii=False)}"]
        if not action.calls:
            lines.append(f"{'Answer' if has_tools else 'Action'}: {action.content}")
        return "\n".join(lines)

    def observe(self, name: str, text: str) -> Message:
        return Message("user", f"Observation: {text}")


class CodeFormat:
    """`code`: one fenced Python block is run; `<answer>` ends, and so does a reply with neither.

    Whichever opens first, a fence or `<answer>`, owns the text up to its own end. So an answer may
    hold a fenced program, and a program may print the word `<answer>`.
    """

    name = "code"
    stop: tuple[str, ...] = ()
    schema_in_template = False
    tool = "python_executor"
    opening = re.compile(r"^[ \t]*```([^`\n]*)$|<answer>", re.M)
    closing = re.compile(r"^[ \t]*```[ \t]*$", re.M)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        how = "Give the answer as <answer>...</answer>."
        return f"To run Python, reply with one ```python block. {how}" if tools else how

    def parse(self, text: str, has_tools: bool) -> Action:
        blocks: list[str] = []
        answers: list[str] = []
        plain: list[str] = []
        position = 0
        while found := self.opening.search(text, position):
            plain.append(text[position : found.start()])
            if found[0] == "<answer>":
                end = text.find("</answer>", found.end())
                if end < 0:
                    return Action(text, error="The <answer> needs its </answer>.")
                answers.append(text[found.end() : end])
                position = end + len("</answer>")
                continue
            close = self.closing.search(text, found.end())
            if close is None:
                return Action(text, error="A block needs a line ``` at its end.")
            if found[1].strip() == "python":
                blocks.append(text[found.end() + 1 : close.start() - 1])
            position = close.end()
        plain.append(text[position:])
        wrong = self._wrong(blocks, answers, plain, has_tools)
        if wrong is None and not (blocks or answers or [text])[0].strip():
            wrong = f"The {'block' if blocks else 'answer' if answers else 'reply'} is empty."
        if wrong is not None:
            return Action(text, error=wrong)
        if answers:
            return Action(text, content=answers[0].strip(), thought=plain[0].strip())
        if blocks:
            call = ToolCall(self.tool, {"code": blocks[0]})
            return Action(text, calls=(call,), thought=text[: text.index("```")].strip())
        return Action(text, content=text.strip())

    @staticmethod
    def _wrong(blocks: list[str], answers: list[str], plain: list[str], has_tools: bool) -> str | None:
        if any("</answer>" in piece for piece in plain):
            return "The </answer> needs an <answer> before it."
        if any("```python" in piece for piece in plain):
            return "A block begins with a line ```python and ends with a line ```."
        if blocks and answers:
            return "Give either a block to run or an <answer>, not both."
        if len(blocks) > 1 or len(answers) > 1:
            return f"Give exactly one {'block' if blocks else '<answer>'}."
        if blocks and not has_tools:
            return "There are no tools here; reply in plain text."
        return None

    def write(self, action: Action, has_tools: bool) -> str:
        parts = [action.thought] if action.thought else []
        for call in action.calls:
            if set(call.arguments) != {"code"}:
                raise UserError(f"The reply format 'code' can only write Python to run, not a call of '{call.name}'.")
            parts.append(f"```python\n{call.arguments['code']}\n```")
        if not action.calls:
            parts.append(f"<answer>{action.content}</answer>" if has_tools else action.content)
        return "\n".join(parts)

    def observe(self, name: str, text: str) -> Message:
        return Message("user", f"Output:\n{text}")


GUI_ACTIONS: dict[str, tuple[frozenset[str], frozenset[str], str]] = {
    "click": (frozenset({"box"}), frozenset(), "click(box=[x1, y1, x2, y2])"),
    "double_click": (frozenset({"box"}), frozenset(), "double_click(box=[x1, y1, x2, y2])"),
    "type": (frozenset({"text"}), frozenset(), 'type(text="...")'),
    "scroll": (frozenset({"direction"}), frozenset({"box"}), 'scroll(direction="down", box=[x1, y1, x2, y2])'),
    "press": (frozenset({"key"}), frozenset(), 'press(key="enter")'),
    "wait": (frozenset(), frozenset(), "wait()"),
    "finished": (frozenset({"answer"}), frozenset(), 'finished(answer="...")'),
}
"""What can be done on a screen: the arguments an action needs, those it may have, and how it is written."""
DIRECTIONS = ("up", "down", "left", "right")
PIXELS = 1_000_000
"""No screen is wider or higher."""


class GuiFormat:
    """`gui`: a thought, then one line `Action: ...` such as `click(box=[10, 20, 60, 40])`; `finished` ends.

    The line is one Python call with keyword literals. It is read as syntax and nothing in it is evaluated:
    numbers are those of JSON, and texts know only the escapes that JSON and Python share.
    """

    name = "gui"
    stop: tuple[str, ...] = ()
    schema_in_template = False
    quoted = re.compile(r""""(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?""")
    """A text, closed or not: whatever follows a quote belongs to it, so a line is gone through once."""
    escape = r"\\(?:[\"'\\bfnrt]|u[0-9a-fA-F]{4})"
    text = re.compile(rf""""(?:[^"\\\x00-\x1f]|{escape})*+"|'(?:[^'\\\x00-\x1f]|{escape})*+'""")
    number = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
    shape = re.compile(r"[A-Za-z_]+\([A-Za-z0-9_ \[\]=,.+\"-]{0,200}\)")
    """An action once its texts are taken out; so short that no nesting can exhaust the parser."""

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        given = {"finished", *(tool["function"]["name"] for tool in tools)}
        listed = "\n".join(form for name, (_, _, form) in GUI_ACTIONS.items() if name in given)
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
        if not all(self.text.fullmatch(found) for found in self.quoted.findall(line)):
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
        wrong = gui_misfit(call.func.id, arguments)
        return ToolCall(call.func.id, arguments) if wrong is None else wrong

    def _value(self, line: str, node: ast.expr) -> Any:
        """What stands in the line just as it is read: nothing joined, computed or rounded to infinity."""
        if isinstance(node, ast.List):
            return [self._literal(line, item) for item in node.elts]
        return self._literal(line, node)

    def _literal(self, line: str, node: ast.expr) -> str | int | float:
        written = ast.get_source_segment(line, node) or ""
        if self.number.fullmatch(written):
            return int(written) if written.lstrip("-").isdigit() else _finite(written)
        if not self.text.fullmatch(written):
            raise ValueError(f"{written} is no literal")
        value = str(ast.literal_eval(written))
        value.encode()  # half a character could not be shown again
        return value

    def write(self, action: Action, has_tools: bool) -> str:
        calls = action.calls or (ToolCall("finished", {"answer": action.content}),)
        wrong = gui_misfit(calls[0].name, calls[0].arguments) if len(calls) == 1 else "One reply is one action."
        if wrong is not None:
            raise UserError(f"The reply format 'gui' cannot write this reply: {wrong}")
        given = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in calls[0].arguments.items())
        thought = f"Thought: {action.thought}\n" if action.thought else ""
        return f"{thought}Action: {calls[0].name}({given})"

    def observe(self, name: str, text: str) -> Message:
        return Message("user", text)


def gui_misfit(name: str, arguments: Mapping[str, Any]) -> str | None:
    """Why this is no action on a screen, or None."""
    if name not in GUI_ACTIONS:
        return f"There is no action '{name[:40]}'.{did_you_mean(name[:40], GUI_ACTIONS)}"
    needed, optional, form = GUI_ACTIONS[name]
    if not needed <= set(arguments) <= needed | optional:
        return f"Write {name} like {form}."
    for key, value in arguments.items():
        if key == "box":
            if not isinstance(value, (list, tuple)) or not all(_is_pixel(item) for item in value):
                return f"A box is a list of numbers, none beyond {PIXELS}."
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
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -PIXELS <= value <= PIXELS


FORMATS: dict[str, type[HermesFormat] | type[ReactFormat] | type[CodeFormat] | type[GuiFormat]] = {
    "hf": HermesFormat,
    "react": ReactFormat,
    "code": CodeFormat,
    "gui": GuiFormat,
}


def make_format(name: str) -> Format:
    if name not in FORMATS:
        raise UserError(f"Unknown reply format '{name}'.{did_you_mean(name, FORMATS)}")
    return FORMATS[name]()


MAX_DEPTH = 64
"""Lists and objects within each other that a reply may have: what is read must be writable again."""


class _Refused(ValueError):
    """JSON that could be read, but not to the letter."""


def _refuse(constant: str) -> None:
    raise _Refused(f"{constant} is not JSON")


def _finite(written: str) -> float:
    value = float(written)
    if not math.isfinite(value):
        raise _Refused("a number is too large")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused("a key stands twice")
    return value


def _strict_json(text: str) -> Any:
    """JSON to the letter; ValueError (or RecursionError) for what could only be guessed at or not be kept."""
    value = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_once)
    level = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            break
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [item for items in inner for item in items]
    if level:
        raise _Refused("it is nested too deeply")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _Refused("it escapes half a character") from None
    return value


def _detail(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f" ({error.msg} at character {error.pos})"
    return f" ({error})" if isinstance(error, _Refused) else ""


def _json_call(block: str) -> ToolCall | str:
    try:
        call = _strict_json(block)
    except (ValueError, RecursionError) as error:
        return f"The tool call is not valid JSON{_detail(error)}."
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return 'A tool call must be an object with "name" and "arguments".'
    if set(call) - {"name", "arguments"} or not isinstance(call.get("arguments"), dict):
        return 'A tool call must have just "name" and "arguments", the latter an object.'
    return ToolCall(call["name"], call["arguments"])


def _arguments(name: str, text: str) -> ToolCall | str:
    try:
        arguments = _strict_json(text)
    except (ValueError, RecursionError) as error:
        return f"The Input is not valid JSON{_detail(error)}."
    if not isinstance(arguments, dict):
        return "The Input must be a JSON object of arguments."
    return ToolCall(name, arguments)
