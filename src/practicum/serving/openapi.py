"""The server's OpenAPI description, at /openapi.json: what the requests must have, so that tools can try them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from practicum import __version__

TEXT = {"type": "string"}
MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["system", "user", "assistant"]}, "content": TEXT},
    "additionalProperties": False,
}
SAMPLING = {
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2**31},
    "stop": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 24}]},
    "stream": {"type": "boolean"},
    "n": {"type": "integer", "minimum": 1, "maximum": 4},
}
FUNCTION_TOOL = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 64},
                "description": TEXT,
                "parameters": {"type": "object"},
            },
        },
    },
}
LIMIT = {"type": "integer", "minimum": 1, "maximum": 8}
MESSAGES = {"type": "array", "minItems": 1, "maxItems": 6, "items": MESSAGE}


def _body(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "required": required, "properties": properties, "additionalProperties": False}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _post(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    answers = {"200": "the answer", "400": "a field is wrong", "401": "the key is wrong", "404": "no such model"}
    answers |= {"413": "too long", "415": "not JSON", "429": "the queue is full", "503": "shutting down or failed"}
    return {"post": {"requestBody": _body(required, properties), "responses": _responses(answers)}}


def _get(*statuses: str) -> dict[str, Any]:
    return {"get": {"responses": _responses(dict.fromkeys(("200", *statuses), "see docs/serving.md"))}}


def _responses(answers: dict[str, str]) -> dict[str, Any]:
    return {status: {"description": text} for status, text in answers.items()}


def openapi(models: Sequence[str]) -> dict[str, Any]:
    """The description as JSON, for a server of these models."""
    model = {"enum": list(models)}
    chat = {
        "model": model,
        "messages": MESSAGES,
        "max_tokens": LIMIT,
        "tools": {"type": "array", "items": FUNCTION_TOOL},
    }
    prompt = {"anyOf": [TEXT, {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}]}
    anthropic = {"model": model, "messages": {**MESSAGES, "items": {
        **MESSAGE, "properties": {"role": {"enum": ["user", "assistant"]}, "content": TEXT}}}}  # fmt: skip
    paths = {
        "/v1/chat/completions": _post(["model", "messages"], {**chat, **SAMPLING, "logprobs": {"type": "boolean"}}),
        "/v1/chat/completions/render": _post(["model", "messages"], chat),
        "/v1/completions": _post(
            ["model", "prompt"], {"model": model, "prompt": prompt, "max_tokens": LIMIT, **SAMPLING}
        ),
        "/v1/responses": _post(
            ["model", "input"],
            {"model": model, "input": TEXT, "max_output_tokens": LIMIT, "stream": {"type": "boolean"}},
        ),
        "/v1/messages": _post(
            ["model", "messages", "max_tokens"], {**anthropic, "max_tokens": LIMIT, "stream": {"type": "boolean"}}
        ),
        "/v1/messages/count_tokens": _post(["model", "messages"], anthropic),
        "/tokenize": _post(["prompt"], {"model": model, "prompt": TEXT}),
        "/detokenize": _post(["tokens"], {"model": model, "tokens": {"type": "array", "items": {"type": "integer"}}}),
        "/v1/load_lora_adapter": _post(["lora_name", "lora_path"], {"lora_name": TEXT, "lora_path": TEXT}),
        "/v1/unload_lora_adapter": _post(["lora_name"], {"lora_name": TEXT}),
        "/v1/models": _get("401"),
        "/health": _get("503"),
        "/version": _get(),
        "/metrics": _get(),
    }
    return {"openapi": "3.1.0", "info": {"title": "practicum serve", "version": __version__}, "paths": paths}
