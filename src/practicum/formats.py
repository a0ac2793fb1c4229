"""Reply formats: how an action is written as text, and read back strictly.

A format never guesses. A reply that it cannot read comes back as an action with `error` set to one
sentence that the agent is shown; no call is ever made of a broken reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from practicum.environment import Action, Message, ToolCall
from practicum.errors import UserError, nearest


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
        opened, closed = text.count("<tool_call>"), text.count("</tool_call>")
        blocks = re.findall(r"<tool_call>(.*?)</tool_call>", text, re.S)
        if opened != closed or opened != len(blocks):
            return Action(text, error="Every <tool_call> needs its own </tool_call>.")
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
        thought = text[: text.index("<tool_call>")].strip()
        return Action(text, calls=tuple(calls), thought=thought)

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


FORMATS: dict[str, type[HermesFormat] | type[ReactFormat]] = {"hf": HermesFormat, "react": ReactFormat}


def make_format(name: str) -> Format:
    if name not in FORMATS:
        raise UserError(f"Unknown reply format '{name}'.{nearest(name, FORMATS)}")
    return FORMATS[name]()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _json_call(block: str) -> ToolCall | str:
    try:
        call = json.loads(block, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        detail = f" ({error.msg} at character {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        return f"The tool call is not valid JSON{detail}."
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return 'A tool call must be an object with "name" and "arguments".'
    if set(call) - {"name", "arguments"} or not isinstance(call.get("arguments"), dict):
        return 'A tool call must have just "name" and "arguments", the latter an object.'
    return ToolCall(call["name"], call["arguments"])


def _arguments(name: str, text: str) -> ToolCall | str:
    try:
        arguments = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return "The Input is not valid JSON."
    if not isinstance(arguments, dict):
        return "The Input must be a JSON object of arguments."
    return ToolCall(name, arguments)
