"""Response formats: the form that a reply must have, as a mapping in the style of the chat completions API.

`{"type": "text"}` (any text), `{"type": "json_object"}`, `{"type": "json_schema", "json_schema": {"schema": …}}`,
`{"type": "regex", "regex": …}`, `{"type": "choice", "choice": [text, …]}`, `{"type": "tool_calls"}` (a call of one of
the tools that the model is offered, in the agent's own reply format), `{"type": "legal"}` (one of the actions that the
observation lists as legal, in that format) and `{"type": "grammar", "grammar": …}` (a Lark grammar in llguidance's
dialect). The first three are OpenAI's; regex, choice and grammar are named as vLLM names them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from practicum.chat.formats.base import Format
from practicum.errors import UserError, did_you_mean

ResponseFormat = Mapping[str, Any]
ANY_TEXT: ResponseFormat = {"type": "text"}
JSON_SPACING = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""JSON may have one space after a comma or colon, and no other: a model that has not been trained would write white
space for ever. A schema's own "x-guidance" takes precedence."""
LLGUIDANCE_MARK = "%llguidance"
"""The directive that a Lark grammar in llguidance's dialect may begin with."""
TYPES = ("text", "json_object", "json_schema", "regex", "choice", "tool_calls", "legal", "grammar")
BARE_TYPES = ("text", "json_object", "tool_calls", "legal")
"""Types that need nothing else, so that their name is enough."""
EXAMPLES = {
    "json_schema": '{"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}',
    "regex": '{"type": "regex", "regex": "[0-9]+"}',
    "choice": '{"type": "choice", "choice": ["yes", "no"]}',
    "grammar": '{"type": "grammar", "grammar": "start: \\"yes\\" | \\"no\\""}',
}
"""How the other types are written."""


def read_response_format(value: Any, name: str) -> ResponseFormat | None:
    """Return the response format of a setting: a mapping, its JSON, the path of a JSON file, or the bare name of a type
    that needs nothing else (`json_object`); None for text.

    `name` is the setting's, for messages.
    """
    if value is None:
        return None
    if isinstance(value, str) and value in BARE_TYPES:
        value = {"type": value}
    elif isinstance(value, str):
        if value in TYPES:
            raise UserError(f"{name}: the type '{value}' needs more than its name; write {EXAMPLES[value]}.")
        try:
            text = value if value.lstrip().startswith("{") else Path(value).expanduser().read_text()
            value = json.loads(text)
        except OSError as error:
            raise UserError(
                f"{name}: '{value}' cannot be read ({error.strerror}); write {', '.join(BARE_TYPES)}, a mapping such "
                f"as {EXAMPLES['regex']}, or the path of a file that holds one."
            ) from None
        except ValueError as error:
            raise UserError(f"{name} is not JSON: {error}.") from None
    if not isinstance(value, Mapping):
        raise UserError(f'{name} must be a mapping such as {{"type": "json_object"}}, or a file that holds one.')
    _kind(value)
    return None if value["type"] == "text" else _plain(value)


def resolve_response_format(
    response_format: ResponseFormat | None,
    format: Format,
    tools: Sequence[Mapping[str, Any]],
    legal: Sequence[str] | None = None,
) -> ResponseFormat | None:
    """Return a response format that depends on nothing else: tool calls become the grammar of these tools, legal
    actions the choice of those that the observation lists."""
    if response_format is None:
        return None
    kind = _kind(response_format)
    if kind == "text":
        return None
    if kind == "legal":
        return _legal_choice(format, legal)
    if kind != "tool_calls":
        return response_format
    write: Callable[[Sequence[Mapping[str, Any]]], str] | None = getattr(format, "tool_call_grammar", None)
    if write is None:
        raise UserError(f"The reply format '{format.name}' has no grammar of tool calls; use 'hf'.")
    if not tools or not all("function" in tool for tool in tools):
        raise UserError("A response format of type 'tool_calls' needs the schemas of tools, and there are none.")
    return {"type": "grammar", "grammar": write(tools)}


def _legal_choice(format: Format, legal: Sequence[str] | None) -> ResponseFormat:
    write: Callable[[str], str] | None = getattr(format, "write_legal", None)
    if write is None:
        raise UserError(f"The reply format '{format.name}' does not say how legal actions are written; use 'web'.")
    if not legal:
        raise UserError("A response format of type 'legal' needs legal actions, and the observation lists none.")
    return {"type": "choice", "choice": [write(action) for action in legal]}


def tool_call_schema(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of an object with the name of one of the tools and its arguments."""
    return {"anyOf": [_call_schema(tool["function"]) for tool in tools], "x-guidance": JSON_SPACING}


def _call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {"type": "object", "additionalProperties": False, **function.get("parameters", {})}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def grammar_of(response_format: ResponseFormat) -> str:
    """Return the grammar of a response format as llguidance reads it; a mapping that is none is a UserError."""
    from llguidance import LLMatcher

    kind = _kind(response_format)
    if kind == "json_object":
        return LLMatcher.grammar_from_json_schema({"type": "object"}, defaults=JSON_SPACING)  # type: ignore[arg-type]
    if kind == "json_schema":
        schema = response_format.get("json_schema", {})
        schema = schema.get("schema", schema) if isinstance(schema, Mapping) else schema
        if not isinstance(schema, Mapping) or not schema:
            raise UserError('A response format of type \'json_schema\' needs {"json_schema": {"schema": {...}}}.')
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_SPACING)  # type: ignore[arg-type]
    if kind == "regex":
        return LLMatcher.grammar_from_regex(_text(response_format, "regex"))
    if kind == "choice":
        return LLMatcher.grammar_from_lark(_choice_grammar(response_format.get("choice")))
    if kind == "grammar":
        return LLMatcher.grammar_from_lark(_text(response_format, "grammar"))
    raise UserError(f"A response format of type '{kind}' depends on what a request offers.")


def lark_grammar_of(response_format: ResponseFormat) -> str:
    """Return the same grammar in llguidance's dialect of Lark, marked as such, for a server that uses llguidance."""
    text = grammar_of(response_format)
    if text.startswith("{"):
        [grammar] = json.loads(text)["grammars"]
        text = grammar["lark_grammar"] or f"start: %json {json.dumps(grammar['json_schema'])}\n"
    return text if text.lstrip().startswith(LLGUIDANCE_MARK) else f"{LLGUIDANCE_MARK} {{}}\n{text}"


def _kind(response_format: ResponseFormat) -> str:
    kind = response_format.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise UserError(f"Unknown type of response format '{kind}'.{did_you_mean(str(kind), TYPES)}")
    return kind


def _text(response_format: ResponseFormat, key: str) -> str:
    value = response_format.get(key)
    if not isinstance(value, str) or not value:
        raise UserError(f"A response format of type '{key}' needs the key '{key}' with a text.")
    return value


def _choice_grammar(choices: object) -> str:
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise UserError("A response format of type 'choice' needs the key 'choice' with a list of texts.")
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise UserError("The choices of a response format must be texts that are not empty.")
    return "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _plain(value: Any) -> Any:
    """Return mappings and lists of a configuration as dictionaries and lists."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
