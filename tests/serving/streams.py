"""Streams of all APIs joined to what the unstreamed answer has."""

from __future__ import annotations

import json
from typing import Any

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
TOOL = {
    "name": "add",
    "description": "Add.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


def body(path: str, limit: int, stream: bool, model: str = "script", **extra: Any) -> dict[str, Any]:
    """A request of an API for a reply of at most `limit` tokens, with a tool."""
    question = {"role": "user", "content": "How much?"}
    value: dict[str, Any] = {"model": model, "stream": stream, **extra}
    if path == "/v1/chat/completions":
        return {**value, "messages": [question], "max_tokens": limit, "tools": [{"type": "function", "function": TOOL}]}
    if path == "/v1/completions":
        return {**value, "prompt": "How much?", "max_tokens": limit}
    if path == "/v1/responses":
        return {**value, "input": "How much?", "max_output_tokens": limit, "tools": [{"type": "function", **TOOL}]}
    tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}
    return {**value, "messages": [question], "max_tokens": limit, "tools": [tool]}


def events(text: str) -> list[Any]:
    """The data of all events; the text of those that are not JSON."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) if line.startswith("{") else line for line in data]


def joined_stream(path: str, text: str) -> dict[str, Any]:
    """What a client has at the end of a stream, without ids and times; fails unless there is one terminal event."""
    parts = events(text)
    return {
        "/v1/chat/completions": _chat,
        "/v1/completions": _completion,
        "/v1/responses": _response,
        "/v1/messages": _message,
    }[path](parts)


def _chat(parts: list[Any]) -> dict[str, Any]:
    assert parts[-1] == "[DONE]"
    assert parts.count("[DONE]") == 1
    choices: dict[int, dict[str, Any]] = {}
    for choice in (choice for part in parts[:-1] for choice in part["choices"]):
        row = choices.setdefault(choice["index"], {"content": "", "calls": [], "reasons": [], "logprobs": []})
        row["content"] += choice["delta"].get("content") or ""
        row["calls"] += [call["function"] for call in choice["delta"].get("tool_calls", ())]
        row["logprobs"] += (choice["logprobs"] or {}).get("content", [])
        row["reasons"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert all(len(row["reasons"]) == 1 for row in choices.values())
    usage = [part["usage"] for part in parts[:-1] if part.get("usage")]
    assert len(usage) == 1
    return {"choices": choices, "usage": usage[0]}


def _completion(parts: list[Any]) -> dict[str, Any]:
    assert parts[-1] == "[DONE]"
    choices: dict[int, dict[str, Any]] = {}
    for choice in (choice for part in parts[:-1] for choice in part["choices"]):
        row = choices.setdefault(choice["index"], {"text": "", "reasons": [], "logprobs": [], "offsets": []})
        row["text"] += choice["text"]
        row["logprobs"] += (choice["logprobs"] or {}).get("token_logprobs", [])
        row["offsets"] += (choice["logprobs"] or {}).get("text_offset", [])
        row["reasons"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert all(len(row["reasons"]) == 1 for row in choices.values())
    return {"choices": choices, "usage": parts[-2]["usage"]}


def _response(parts: list[Any]) -> dict[str, Any]:
    ended = [part for part in parts if part["type"] in ("response.completed", "response.incomplete", "error")]
    assert len(ended) == 1
    assert parts[-1] is ended[0]
    assert [part["sequence_number"] for part in parts] == list(range(len(parts)))
    texts: dict[int, str] = {}
    for part in parts:
        if part["type"].endswith((".output_text.delta", ".function_call_arguments.delta")):
            texts[part["output_index"]] = texts.get(part["output_index"], "") + part["delta"]
    response = ended[0]["response"]
    for index, item in enumerate(response["output"]):
        joined = item["content"][0]["text"] if item["type"] == "message" else item["arguments"]
        assert texts.get(index, "") == joined
    return without_names(response)


def _message(parts: list[Any]) -> dict[str, Any]:
    assert [part["type"] for part in parts].count("message_stop") == 1
    assert parts[-1]["type"] == "message_stop"
    blocks: list[dict[str, Any]] = []
    for part in parts:
        if part["type"] == "content_block_start":
            assert part["index"] == len(blocks)
            blocks.append({**part["content_block"], "json": ""})
        elif part["type"] == "content_block_delta":
            delta = part["delta"]
            if delta["type"] == "text_delta":
                blocks[-1]["text"] += delta["text"]
            else:
                blocks[-1]["json"] += delta["partial_json"]
    for block in blocks:
        written = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(written)
    [end] = [part for part in parts if part["type"] == "message_delta"]
    return without_names({**parts[0]["message"], **end["delta"], "usage": end["usage"], "content": blocks})


def unstreamed(path: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Content and calls of an answer that was not streamed, in the form that `joined_stream` gives."""
    if path == "/v1/chat/completions":
        choices = {
            row["index"]: {
                "content": row["message"]["content"] or "",
                "calls": [call["function"] for call in row["message"].get("tool_calls", ())],
                "reasons": [row["finish_reason"]],
                "logprobs": (row["logprobs"] or {}).get("content", []),
            }
            for row in answer["choices"]
        }
        return {"choices": choices, "usage": answer["usage"]}
    if path == "/v1/completions":
        choices = {
            row["index"]: {
                "text": row["text"],
                "reasons": [row["finish_reason"]],
                "logprobs": (row["logprobs"] or {}).get("token_logprobs", []),
                "offsets": (row["logprobs"] or {}).get("text_offset", []),
            }
            for row in answer["choices"]
        }
        return {"choices": choices, "usage": answer["usage"]}
    return without_names(answer)


def without_names(value: Any) -> Any:
    """A value without ids and times."""
    if isinstance(value, dict):
        return {k: without_names(v) for k, v in value.items() if k not in ("id", "call_id", "item_id", "created_at")}
    return [without_names(item) for item in value] if isinstance(value, list) else value
