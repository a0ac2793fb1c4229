"""The reply formats of a web agent: `web`, an action as a call, and `web_json`, HALO's JSON around one.

A role without actions to choose from, such as a manager, replies in plain text in both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.chat.formats.hermes import error_detail, strict_json
from practicum.chat.formats.web_actions import (
    WEB_ACTIONS,
    Parameter,
    WebActionError,
    parse_action,
    write_action,
)
from practicum.environment import Action, Message, ToolCall
from practicum.errors import UserError

MESSAGE = "send_msg_to_user"
"""The action that ends an episode with a message; it is the `content` of an Action, and not one of its calls."""
JSON_KEYS = ("action", "rationale", "confidence")


class WebFormat:
    """`web`: the last line is one action, such as `click("12")`; the text before it is the thought."""

    name = "web"
    stop: tuple[str, ...] = ()
    schema_in_template = False

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        return f"Reply with one action on the last line. The actions are:\n{examples(tools)}"

    def parse(self, text: str, has_tools: bool) -> Action:
        if has_tools:
            return self._read(text)
        content = text.strip()
        return Action(text, content=content, error=None if content else "The reply was empty.")

    def write(self, action: Action, has_tools: bool) -> str:
        return self._write(action) if has_tools or action.calls else action.content

    def write_legal(self, reply: str) -> str:
        """Return a legal reply, which is written in the format `web`, in this format."""
        return reply

    def _read(self, text: str) -> Action:
        thought, _, line = text.strip().rpartition("\n")
        return read_action(text, line, thought.strip())

    def _write(self, action: Action) -> str:
        written = self._written(action)
        return f"{action.thought}\n{written}" if action.thought else written

    def _written(self, action: Action) -> str:
        calls = action.calls or (ToolCall(MESSAGE, {"text": action.content}),)
        try:
            if len(calls) != 1:
                raise WebActionError("One reply has one action.")
            return write_action(calls[0])
        except WebActionError as error:
            raise UserError(f"The reply format '{self.name}' cannot write this reply: {error}") from None

    def observe(self, name: str, text: str) -> Message:
        return Message("user", text)


class WebJsonFormat(WebFormat):
    """`web_json`: a JSON object with an `action` and, optionally, its `rationale` and `confidence`."""

    name = "web_json"

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        shape = '{"action": "click(\\"12\\")", "rationale": "why", "confidence": 0.9}'
        return f"Reply with one JSON object only, such as {shape}. The actions are:\n{examples(tools)}"

    def write_legal(self, reply: str) -> str:
        return self._write(WebFormat()._read(reply))

    def _read(self, text: str) -> Action:
        try:
            value = strict_json(text)
        except (ValueError, RecursionError) as error:
            return Action(text, error=f"The reply is not one JSON object{error_detail(error)}.")
        if not isinstance(value, dict) or not isinstance(value.get("action"), str):
            return Action(text, error='The reply needs a text "action" in a JSON object.')
        unknown = [key for key in value if key not in JSON_KEYS]
        if unknown:
            return Action(text, error=f"The reply may have {', '.join(JSON_KEYS)}, and nothing else.")
        rationale = value.get("rationale", "")
        if not isinstance(rationale, str):
            return Action(text, error='The "rationale" is a text.')
        return read_action(text, value["action"], rationale.strip())

    def _write(self, action: Action) -> str:
        value = {"action": self._written(action), **({"rationale": action.thought} if action.thought else {})}
        return json.dumps(value, ensure_ascii=False)


def read_action(text: str, written: str, thought: str) -> Action:
    """Return the Action of a reply in which an action is written; `error` is set where it cannot be read."""
    try:
        call = parse_action(written)
    except WebActionError as error:
        return Action(text, error=str(error))
    if call.name == MESSAGE:
        return Action(text, content=call.arguments["text"], thought=thought)
    return Action(text, calls=(call,), thought=thought)


def examples(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return an example of each action that the tools name, and of the message that ends an episode."""
    names = {MESSAGE, *(tool["function"]["name"] for tool in tools)}
    return "\n".join(verb.example for name, verb in WEB_ACTIONS.items() if name in names)


def web_tool(name: str) -> dict[str, Any]:
    """Return the schema of an action in the format of tool schemas."""
    verb = WEB_ACTIONS[name]
    properties = {parameter.name: _property(parameter) for parameter in verb.parameters}
    required = [parameter.name for parameter in verb.parameters if parameter.required]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": verb.example, "parameters": parameters}}


def _property(parameter: Parameter) -> dict[str, Any]:
    kinds: dict[str, dict[str, Any]] = {
        "number": {"type": "number"},
        "milliseconds": {"type": "number"},
        "index": {"type": "integer"},
        "flag": {"type": "boolean"},
        "texts": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "modifiers": {"type": "array", "items": {"type": "string"}},
    }
    return kinds.get(parameter.kind, {"type": "string"})
