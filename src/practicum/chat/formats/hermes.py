"""The reply format `hf`: tool calls as JSON between <tool_call> tags, as Hermes and Qwen models write them.

The JSON is read strictly (`strict_json`, which `react` uses too): what could only be guessed at, or could not be
written again, is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.chat.response_format import tool_call_schema
from practicum.environment import Action, Message, ToolCall

OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"
TAGGED_CALL = f'"{OPEN_TAG}" call "{CLOSE_TAG}"'
"""A call between its tags, in the grammar of replies; `call` is the rule of the JSON between them."""
MAX_DEPTH = 64
"""Levels of lists and objects in a reply: what is read must be writable again."""


class NotStrictJSON(ValueError):
    """Text that Python's JSON reader accepts and a strict one does not."""


def _refuse_constant(constant: str) -> None:
    raise NotStrictJSON(f"{constant} is not JSON")


def finite_float(text: str) -> float:
    """Return the number of a text; one that is too large for a float raises NotStrictJSON."""
    value = float(text)
    if not math.isfinite(value):
        raise NotStrictJSON("a number is too large")
    return value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise NotStrictJSON("a key stands twice")
    return value


def strict_json(text: str) -> Any:
    """Return the value of a JSON text; raise ValueError (or RecursionError) where it is not strict JSON."""
    value = json.loads(
        text, parse_constant=_refuse_constant, parse_float=finite_float, object_pairs_hook=_object_without_duplicates
    )
    level = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            break
        containers = [item for item in level if isinstance(item, (dict, list))]
        level = [item for outer in containers for item in (outer.values() if isinstance(outer, dict) else outer)]
    if level:
        raise NotStrictJSON("it is nested too deeply")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise NotStrictJSON("it escapes half a character") from None
    return value


def error_detail(error: Exception) -> str:
    """Return what is known about a reading error, in parentheses, or ""."""
    if isinstance(error, json.JSONDecodeError):
        return f" ({error.msg} at character {error.pos})"
    return f" ({error})" if isinstance(error, NotStrictJSON) else ""


class HermesFormat:
    """`hf`: tool calls as JSON between <tool_call> tags; a reply without any is the final answer."""

    name = "hf"
    stop: tuple[str, ...] = ()
    schema_in_template = True

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        return ""

    def parse(self, text: str, has_tools: bool) -> Action:
        before, *opened = text.split(OPEN_TAG)
        if CLOSE_TAG in before or any(piece.count(CLOSE_TAG) != 1 for piece in opened):
            return Action(text, error="Every <tool_call> needs its own </tool_call>.")
        blocks = [piece.partition(CLOSE_TAG)[0] for piece in opened]
        if not blocks:
            content = text.strip()
            return Action(text, content=content, error=None if content else "The reply was empty.")
        if not has_tools:
            return Action(text, error="There are no tools here; reply in plain text.")
        calls = []
        for block in blocks:
            call = parse_call(block)
            if isinstance(call, str):
                return Action(text, error=call)
            calls.append(call)
        return Action(text, calls=tuple(calls), thought=before.strip())

    def write(self, action: Action, has_tools: bool) -> str:
        lines = [action.thought] if action.thought else []
        for call in action.calls:
            body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
            lines.append(f"<tool_call>{body}</tool_call>")
        if not action.calls:
            lines.append(action.content)
        return "\n".join(lines)

    def observe(self, name: str, text: str) -> Message:
        return Message("tool", text, name=name)

    def tool_call_grammar(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return the Lark grammar of a reply that is one call of one of the tools."""
        return f"start: {TAGGED_CALL}\ncall: %json {json.dumps(tool_call_schema(tools))}\n"


def parse_call(block: str) -> ToolCall | str:
    """Return the call that a block holds, or what is wrong with it."""
    try:
        call = strict_json(block)
    except (ValueError, RecursionError) as error:
        return f"The tool call is not valid JSON{error_detail(error)}."
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return 'A tool call must be an object with "name" and "arguments".'
    if set(call) - {"name", "arguments"} or not isinstance(call.get("arguments"), dict):
        return 'A tool call must have just "name" and "arguments", the latter an object.'
    return ToolCall(call["name"], call["arguments"])
