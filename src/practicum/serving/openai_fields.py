"""Fields that OpenAI's APIs share: messages, tools, sampling parameters, log-probs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from practicum.chat.renderer import Renderer
from practicum.engines.base import SampledToken
from practicum.environment import ToolCall, Usage
from practicum.serving.body import Body, clean_text
from practicum.serving.errors import bad_request
from practicum.serving.service import MAX_SEED
from practicum.serving.turn import AUTO, FUNCTION, NONE, REQUIRED, ChatMessage, ToolChoice

MAX_STOPS = 16
MAX_TOKENS = 2**31
HARMLESS = (
    "user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
)  # fmt: skip
"""Fields that say nothing about the reply."""
UNSUPPORTED_SAMPLING: Mapping[str, Sequence[Any]] = {
    "frequency_penalty": (0, 0.0), "presence_penalty": (0, 0.0), "logit_bias": ({},), "repetition_penalty": (1, 1.0),
    "min_p": (0, 0.0), "min_tokens": (0,), "ignore_eos": (False,), "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
}  # fmt: skip
"""Sampling parameters that the engine does not have, with the values that change nothing."""
NAME_OF_TOOL = 64


def read_sampling(body: Body) -> dict[str, Any]:
    """The fields of a `TurnRequest` that say how to sample."""
    body.refuse(UNSUPPORTED_SAMPLING, "log-probs are those of temperature, top_p and top_k alone")
    return {
        "temperature": body.number("temperature", 0.0, 2.0),
        "top_p": _top_p(body),
        "top_k": _top_k(body),
        "seed": body.integer("seed", -(2**63), MAX_SEED),
        "stop": body.texts("stop", MAX_STOPS),
    }


def _top_p(body: Body) -> float | None:
    value = body.number("top_p", 0.0, 1.0)
    if value == 0.0:
        raise bad_request(f"'{body.name('top_p')}' must be above 0.", body.name("top_p"))
    return value


def _top_k(body: Body) -> int | None:
    value = body.integer("top_k", -1, 2**31)
    return 0 if value == -1 else value


def read_content(body: Body, field: str, kinds: Sequence[str]) -> str:
    """The text of a content: a string, or a list of parts of text; `kinds` are the types of such parts.

    Parts of an assistant's message are those of one reply and are joined as they are, others line by line.
    """
    value = body.get(field)
    if value is None or isinstance(value, str):
        return clean_text(value or "")
    if not isinstance(value, list):
        raise bad_request(f"'{body.name(field)}' must be a string or a list.", body.name(field), "invalid_type")
    texts = []
    for part in body.objects(field):
        kind = part.require("type")
        if kind not in kinds:
            raise bad_request(
                f"'{part.name('type')}': parts of type {kind!r} are not supported, this model takes text.",
                part.name("type"), "unsupported_value",
            )  # fmt: skip
        text = part.text("refusal" if kind == "refusal" else "text")
        if text is None:
            raise bad_request(f"'{part.name('text')}' is missing.", part.name("text"), "missing_required_parameter")
        texts.append(text)
    return ("" if body.values.get("role") == "assistant" else "\n").join(texts)


def parse_arguments(text: Any, name: str) -> dict[str, Any]:
    """The arguments of a call that a client sends back; "" is none."""
    try:
        value = json.loads(text or "{}") if isinstance(text, str | None) else text
    except (ValueError, RecursionError):
        raise bad_request(f"'{name}' is not JSON.", name) from None
    if not isinstance(value, dict):
        raise bad_request(f"'{name}' must be a JSON object.", name, "invalid_type")
    return value


def read_tool(function: Body) -> dict[str, Any]:
    """A tool as chat templates take it, from an object with name, description and parameters."""
    name = function.require("name")
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_OF_TOOL:
        raise bad_request(
            f"'{function.name('name')}' must be a string of 1 to {NAME_OF_TOOL} characters.", function.name("name")
        )
    parameters = function.object("parameters")
    schema: dict[str, Any] = {"type": "object", "properties": {}, **(parameters.values if parameters else {})}
    if not isinstance(schema["properties"], dict):
        raise bad_request(
            f"'{function.name('parameters')}.properties' must be an object.", function.name("parameters"),
            "invalid_type",
        )  # fmt: skip
    function.accept("strict")
    description = function.text("description") or ""
    return {
        "type": "function",
        "function": {"name": clean_text(name), "description": description, "parameters": schema},
    }


def read_tool_choice(value: Any, field: str, tools: Sequence[Mapping[str, Any]], parallel: bool) -> ToolChoice:
    """`tool_choice` of the chat and responses APIs: auto, none, required, or a function."""
    names = [tool["function"]["name"] for tool in tools]
    if value is None:
        return ToolChoice(AUTO, parallel=parallel)
    if isinstance(value, str) and value in (AUTO, NONE, REQUIRED):
        if value == REQUIRED and not names:
            raise bad_request(f"'{field}' is required, but there are no tools.", field)
        return ToolChoice(value, parallel=parallel)
    if isinstance(value, dict) and value.get("type") in ("function", "custom"):
        inner = value.get(value["type"], value)
        name = inner.get("name") if isinstance(inner, dict) else None
        if name not in names:
            raise bad_request(f"'{field}' names a function that is not among the tools.", field)
        return ToolChoice(FUNCTION, str(name), parallel)
    raise bad_request(f"'{field}' must be auto, none, required, or a function.", field, "unsupported_value")


def read_messages(body: Body, field: str = "messages") -> tuple[ChatMessage, ...]:
    """The messages of the chat API; a tool message has the name of the tool whose call it answers."""
    body.require(field)
    messages: list[ChatMessage] = []
    names: dict[str, str] = {}
    for message in body.objects(field):
        role = message.require("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise bad_request(
                f"'{message.name('role')}' must be system, developer, user, assistant or tool.", message.name("role"),
                "unsupported_value",
            )  # fmt: skip
        text = read_content(message, "content", ("text", "refusal"))
        calls = _read_calls(message, names) if role == "assistant" else ()
        if role != "assistant" and message.get("content") is None:
            raise bad_request(
                f"'{message.name('content')}' is missing.", message.name("content"), "missing_required_parameter"
            )
        name = None
        if role == "tool":
            call_id = message.text("tool_call_id") or ""
            name = names.get(call_id) or message.text("name") or "tool"
        message.accept("name", "refusal", "audio", "annotations", "reasoning_content", "reasoning")
        message.refuse({"function_call": ()}, "use tool_calls")
        message.finish()
        messages.append(ChatMessage("system" if role == "developer" else role, text, calls, name))
    if not messages:
        raise bad_request(f"'{field}' must have at least one message.", field)
    return tuple(messages)


def _read_calls(message: Body, names: dict[str, str]) -> tuple[ToolCall, ...]:
    calls = []
    for call in message.objects("tool_calls"):
        call.accept("type", "index")
        function = call.object("function")
        if function is None:
            raise bad_request(f"'{call.name('function')}' is missing.", call.name("function"))
        name = function.text("name") or ""
        names[call.text("id") or ""] = name
        calls.append(ToolCall(name, parse_arguments(function.get("arguments"), function.name("arguments"))))
        function.finish()
        call.accept("extra_content")
        call.finish()
    return tuple(calls)


def read_response_format(value: Any, field: str) -> Mapping[str, Any] | None:
    """`response_format` of the chat API; None for plain text."""
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise bad_request(f"'{field}' must be an object with a type.", field, "invalid_type")
    kind = value["type"]
    if kind == "text":
        return None
    if kind == "json_schema":
        schema = value.get("json_schema")
        if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
            raise bad_request(f"'{field}.json_schema.schema' must be an object.", f"{field}.json_schema.schema")
        return {"type": kind, "json_schema": {"schema": closed_schema(schema["schema"])}}
    if kind in ("json_object", "regex", "choice", "grammar"):
        return value
    raise bad_request(f"'{field}.type' is not supported: {kind!r}.", f"{field}.type", "unsupported_value")


def closed_schema(schema: Any) -> Any:
    """A schema whose objects have the properties that they list and no others, unless it says so itself.

    A model would otherwise go on with properties of its own; vLLM's backends close objects too.
    """
    if isinstance(schema, list):
        return [closed_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: value if key in ("enum", "const") else closed_schema(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        result.setdefault("additionalProperties", False)
    return result


def usage_json(usage: Usage) -> dict[str, Any]:
    """Token counts as the chat and completions APIs write them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def token_text(renderer: Renderer, token: int) -> tuple[str, list[int]]:
    """The text of one token, and its bytes."""
    data = (
        renderer.token_bytes[token] if renderer.token_bytes is not None else renderer.tokenizer.decode([token]).encode()
    )
    return data.decode(errors="replace"), list(data)


def logprobs_json(renderer: Renderer, tokens: Iterable[SampledToken], as_ids: bool = False) -> list[dict[str, Any]]:
    """Log-probs per token as the chat and responses APIs write them; `as_ids`: tokens are written as token_id:N."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text, data = token_text(renderer, token)
        return {"token": f"token_id:{token}" if as_ids else text, "logprob": logprob, "bytes": data}

    return [
        {**entry(token.id, token.logprob), "top_logprobs": [entry(other, value) for other, value in token.top]}
        for token in tokens
    ]
