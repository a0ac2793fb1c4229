"""The reply format `react`: lines of Thought, Action, Input and Answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.chat.formats.hermes import error_detail, strict_json
from practicum.environment import Action, Message, ToolCall


class ReactFormat:
    """`react`: Thought / Action / Input lines; `Answer:` ends.

    Where there are tools, `Action:` names one and `Input:` is its JSON. In an environment of commands, `Action:` is the
    command itself.
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
        fields = self._fields(text.split("\nObservation:")[0])
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
        """Return the text after each label, or what is wrong with the labels."""
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


def _arguments(name: str, text: str) -> ToolCall | str:
    """Return the call with the arguments that a text holds, or what is wrong with them."""
    try:
        arguments = strict_json(text)
    except (ValueError, RecursionError) as error:
        return f"The Input is not valid JSON{error_detail(error)}."
    if not isinstance(arguments, dict):
        return "The Input must be a JSON object of arguments."
    return ToolCall(name, arguments)
