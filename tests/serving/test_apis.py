"""Requests that are wrong, keys, limits, and what the smaller endpoints answer."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import httpx
import pytest

from practicum.cli.serve import api_keys
from practicum.engines.base import Request
from practicum.errors import UserError
from practicum.serving.app import make_app
from practicum.serving.body import Body
from practicum.serving.errors import APIError
from practicum.serving.service import ClientLimits
from tests.serving.conftest import MakeServer, call, post, until
from tests.serving.streams import TOOL

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "How much?"}]
OK = {"model": "script", "messages": QUESTION}


@pytest.mark.parametrize(
    ("extra", "param", "code"),
    [
        ({"tempurature": 1}, "tempurature", "unknown_parameter"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
        ({"presence_penalty": 0.5}, "presence_penalty", "unsupported_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": "1"}, "temperature", "invalid_type"),
        ({"n": 0}, "n", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"stop": ["x" * 30]}, "stop", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "judge", "content": ""}]}, "messages[0].role", "unsupported_value"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type",
         "unsupported_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [{"type": "function", "function": {"name": 3}}]}, "tools[0].function.name", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"model": "other"}, "model", "model_not_found"),
        ({"model": None}, "model", "missing_required_parameter"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "unsupported_value"),
        ({"messages": [{"role": "user", "content": "word " * 4000}]}, "messages", "context_length_exceeded"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(make_server: MakeServer, extra: dict[str, Any], param: str, code: str) -> None:
    answer = post(make_server("x"), CHAT, {**OK, **extra})
    assert answer.status_code == (404 if code == "model_not_found" else 400)
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert error["type"] in ("invalid_request_error", "not_found_error")
    assert error["message"]


def test_harmless_fields_are_accepted(make_server: MakeServer) -> None:
    accepted = {
        "user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prompt_cache_key": "k",
        "safety_identifier": "s", "frequency_penalty": 0, "logit_bias": {}, "n": 1, "tools": [], "seed": None,
    }  # fmt: skip
    assert post(make_server("x"), CHAT, {**OK, **accepted}).json()["choices"][0]["message"]["content"] == "x"


def test_errors_of_the_other_apis_have_their_shapes(make_server: MakeServer) -> None:
    server = make_server("x")
    answer = post(server, "/v1/messages", {"model": "script", "messages": QUESTION})
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "max_tokens" in answer.json()["error"]["message"]
    assert post(server, "/v1/responses", {"model": "script"}).json()["error"]["param"] == "input"
    assert post(server, "/nowhere", {}).json()["error"]["code"] == "not_found"


def test_bodies_that_are_no_json(make_server: MakeServer) -> None:
    server = make_server("x", limits=ClientLimits(max_body_bytes=100))

    async def run() -> list[int]:
        transport = httpx.ASGITransport(make_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            json_type = {"content-type": "application/json"}
            bodies = [b"", b"{", b"[1]", b'{"a": NaN}', b"\xff", b"[" * 99, b'"\\ud800"', b" " * 200]
            answers = [await client.post(CHAT, content=body, headers=json_type) for body in bodies]
            answers.append(await client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}))
            return [answer.status_code for answer in answers]

    assert asyncio.run(run()) == [400] * 7 + [413, 415]


def test_keys(make_server: MakeServer) -> None:
    server = make_server("x", api_keys=["secret"])
    assert post(server, CHAT, OK).status_code == 401
    assert post(server, CHAT, OK, authorization="Bearer wrong").status_code == 401
    assert post(server, CHAT, OK, authorization="Bearer secret").status_code == 200
    assert post(server, CHAT, OK, **{"x-api-key": "secret"}).status_code == 200
    assert post(server, "/tokenize", {"prompt": "x"}).status_code == 401


def test_foreign_host_names_are_refused(make_server: MakeServer) -> None:
    async def run() -> int:
        transport = httpx.ASGITransport(make_app(make_server("x"), ["localhost"]))
        async with httpx.AsyncClient(transport=transport, base_url="http://evil.example") as client:
            return (await client.post(CHAT, json=OK)).status_code

    assert asyncio.run(run()) == 400


def test_tools_and_their_results_are_rendered_as_in_training(make_server: MakeServer) -> None:
    server = make_server("x")
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    messages = [
        {"role": "system", "content": "Add."}, *QUESTION, {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]  # fmt: skip
    rendered = post(
        server, f"{CHAT}/render", {**OK, "messages": messages, "tools": [{"type": "function", "function": TOOL}]}
    )
    assert rendered.json()["prompt"] == (
        "<|im_start|>system\nAdd.\nadd(a): Add.<|im_end|>\n<|im_start|>user\nHow much?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n"
    )
    blocks = [
        {"role": "user", "content": "How much?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "3"}]},
    ]
    tools = [{"name": "add", "description": "Add.", "input_schema": TOOL["parameters"]}]
    counted = post(
        server, "/v1/messages/count_tokens", {"model": "script", "system": "Add.", "messages": blocks, "tools": tools}
    )
    assert counted.json() == {"input_tokens": len(rendered.json()["token_ids"])}
    items = [
        {"role": "user", "content": "How much?"},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
    ]
    body = {"model": "script", "instructions": "Add.", "input": items, "tools": [{"type": "function", **TOOL}]}
    assert post(server, "/v1/responses", body).status_code == 200
    engine: Any = server.models.default.engine  # type: ignore[union-attr]
    assert list(engine.requests[-1].ids) == rendered.json()["token_ids"]


def test_tokenize_and_detokenize(make_server: MakeServer) -> None:
    server = make_server("x")
    tokens = post(server, "/tokenize", {"prompt": "Ada has 12 été."}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == 2048
    assert post(server, "/detokenize", {"tokens": tokens["tokens"]}).json() == {"prompt": "Ada has 12 été."}
    assert post(server, "/detokenize", {"tokens": [10**9]}).status_code == 400
    messages = post(server, "/tokenize", {"messages": QUESTION}).json()
    assert messages["tokens"] == post(server, f"{CHAT}/render", OK).json()["token_ids"]


def test_responses_continue_earlier_ones(make_server: MakeServer) -> None:
    server = make_server(lambda request: f"reply {len(request.ids)}")
    path = "/v1/responses"
    first = post(server, path, {"model": "script", "input": "How much?", "instructions": "Brief."}).json()
    second = post(server, path, {"model": "script", "input": "And now?", "previous_response_id": first["id"]}).json()
    engine: Any = server.models.default.engine  # type: ignore[union-attr]
    text = engine.renderer.tokenizer.decode(list(engine.requests[-1].ids))
    assert text.count("How much?") == text.count("And now?") == 1
    assert first["output"][0]["content"][0]["text"] in text
    assert "Brief." not in text, "instructions are those of one request"
    assert second["previous_response_id"] == first["id"]
    unknown = post(server, path, {"model": "script", "input": "x", "previous_response_id": "resp_0"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "previous_response_id")
    forgotten = post(server, path, {"model": "script", "input": "x", "store": False}).json()
    body = {"model": "script", "input": "x", "previous_response_id": forgotten["id"]}
    assert post(server, path, body).status_code == 404


def test_custom_tools_take_a_text(make_server: MakeServer) -> None:
    server = make_server('<tool_call>{"name": "shell", "arguments": {"input": "ls"}}</tool_call>')
    body = {"model": "script", "input": "x", "tools": [{"type": "custom", "name": "shell", "description": "Run."}]}
    [item] = post(server, "/v1/responses", body).json()["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "shell", "ls")


def test_choices_have_seeds_of_their_own_and_the_first_the_requests(make_server: MakeServer) -> None:
    server = make_server(lambda request: str(request.sampling.seed))
    texts = [
        [choice["message"]["content"] for choice in post(server, CHAT, {**OK, "n": n, "seed": 7}).json()["choices"]]
        for n in (1, 3)
    ]
    assert texts[0] == ["7"] == texts[1][:1]
    assert len(set(texts[1])) == 3


def test_only_one_call_where_calls_may_not_be_parallel(make_server: MakeServer) -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    body = {**OK, "tools": [{"type": "function", "function": TOOL}], "parallel_tool_calls": False}
    choice = post(make_server(call * 2), CHAT, body).json()["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"
    answer = post(make_server(call), CHAT, {**body, "tool_choice": "none"}).json()["choices"][0]
    assert answer["message"]["content"] == call


def test_a_full_queue_is_429_and_the_queue_is_fair(make_server: MakeServer) -> None:
    order: list[str] = []

    def reply(request: Request) -> str:
        order.append(str(request.sampling.seed))
        return "a b c"

    server = make_server(reply, max_batch=1, limits=ClientLimits(max_waiting=4), api_keys=["a", "b"])

    async def run() -> list[httpx.Response]:
        engine: Any = server.models.default.engine  # type: ignore[union-attr]
        engine.gate = asyncio.Event()
        transport = httpx.ASGITransport(make_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            tasks = []
            for index, (key, seed) in enumerate([("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 9)]):
                headers = {"authorization": f"Bearer {key}"}
                tasks.append(asyncio.create_task(client.post(CHAT, json={**OK, "seed": seed}, headers=headers)))
                await until(lambda index=index: server.queue.running == 1 and server.queue.waiting == index)  # type: ignore[misc]
            refused = await client.post(CHAT, json=OK, headers={"authorization": "Bearer a"})
            engine.gate.set()
            return [*await asyncio.gather(*tasks), refused]

    answers = asyncio.run(run())
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 200, 429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert order.index("9") < order.index("2"), "the other client waits behind one request, not behind all"


def test_metrics_have_vllms_names(make_server: MakeServer) -> None:
    server = make_server("one two three")
    call(server, (CHAT, OK), (CHAT, {**OK, "stream": True}))

    async def read(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app(server)), base_url="http://t") as client:
            return await client.get(path)

    text = asyncio.run(read("/metrics")).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    label = '{model_name="script"'
    assert float(values[f"vllm:e2e_request_latency_seconds_count{label}}}"]) == 2
    assert float(values[f"vllm:time_to_first_token_seconds_count{label}}}"]) == 2
    assert float(values[f'vllm:request_success_total{label},finished_reason="stop"}}']) == 2
    assert float(values[f"vllm:num_requests_running{label}}}"]) == 0
    assert asyncio.run(read("/health")).status_code == 200
    server.draining = True
    assert asyncio.run(read("/health")).status_code == 503
    assert post(server, CHAT, OK).status_code == 503
    assert json.loads(asyncio.run(read("/openapi.json")).text)["openapi"].startswith("3")


def test_kept_responses_are_bounded_by_their_bytes(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("practicum.serving.openai_responses.MAX_KEPT_BYTES", 6000)
    server = make_server("x")
    request_body = {"model": "script", "input": "word " * 300}
    names = [answer.json()["id"] for answer in call(server, *[("/v1/responses", request_body)] * 3)]
    bodies = [{"model": "script", "input": "y", "previous_response_id": name, "store": False} for name in names]
    answers = call(server, *(("/v1/responses", body) for body in bodies))
    assert [answer.status_code for answer in answers] == [404, 200, 200]
    for metadata in ({"k": "v" * 513}, {"k" * 65: "v"}, {str(n): "v" for n in range(17)}, {"k": 1}):
        error = post(server, "/v1/responses", {**request_body, "metadata": metadata}).json()["error"]
        assert error["param"] == "metadata"
    assert post(server, "/v1/responses", {**request_body, "metadata": {"k" * 64: "v" * 512}}).status_code == 200


def test_an_empty_key_is_refused() -> None:
    assert api_keys(["a"], {"PRACTICUM_API_KEY": "b"}) == ["a", "b"]
    assert api_keys([], {}) == []
    for keys, environment in (([""], {}), (["a", " "], {}), ([], {"PRACTICUM_API_KEY": ""})):
        with pytest.raises(UserError, match="empty"):
            api_keys(keys, environment)


def test_errors_name_the_fields_of_their_own_api(make_server: MakeServer) -> None:
    server = make_server("x")
    for form, param in (
        ({"type": "json_schema", "name": "x"}, "text.format.schema"),
        ({"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}, "text.format"),
    ):
        body = {"model": "script", "input": "x", "text": {"format": form}}
        assert post(server, "/v1/responses", body).json()["error"]["param"] == param
    assert APIError(415, "").kind == "invalid_request_error"
    with pytest.raises(APIError, match="too large"):
        Body({"reward": 10**400}).number("reward", -math.inf, math.inf)
