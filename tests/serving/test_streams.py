"""A stream, joined, is the unstreamed answer, field by field, wherever the reply is cut; and it ends exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from practicum.serving.app import ModelServer
from tests.serving.conftest import MakeServer, call
from tests.serving.streams import PATHS, body, joined_stream, unstreamed

CALL = '<tool_call>{"name": "add", "arguments": {"a": 12, "t": "é"}}</tool_call>'
REPLIES = {
    "text": "Twelve, \u00e9t\u00e9 \U0001f600 <b> and so on",
    "call": f"Let me see. \n{CALL}\n{CALL}",
    "broken call": 'Well <tool_call>{"name": add}</tool_call> after it',
    "text after a call": f"{CALL} then <tool_c and more",
    "empty": "",
}


def options(path: str) -> dict[str, Any]:
    if path == "/v1/chat/completions":
        return {"stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2, "n": 2}
    return {"stream_options": {"include_usage": True}, "logprobs": 1, "n": 2} if path == "/v1/completions" else {}


def pair(server: ModelServer, path: str, limit: int, **extra: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A streamed answer, joined, and the unstreamed one."""
    streamed_options, plain_options = {**options(path), **extra}, {**options(path), **extra}
    plain_options.pop("stream_options", None)
    streamed, plain = call(
        server, (path, body(path, limit, True, **streamed_options)), (path, body(path, limit, False, **plain_options))
    )
    assert streamed.status_code == plain.status_code == 200, plain.text
    assert streamed.headers["content-type"].startswith("text/event-stream")
    return joined_stream(path, streamed.text), unstreamed(path, plain.json())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("reply", REPLIES)
def test_a_stream_is_the_answer_at_every_limit(make_server: MakeServer, path: str, reply: str) -> None:
    server = make_server(REPLIES[reply])
    length = len(server.models.default.renderer.encode_reply(REPLIES[reply]))  # type: ignore[union-attr]
    for limit in range(1, length + 2):
        streamed, plain = pair(server, path, limit)
        assert streamed == plain, f"limit {limit}"


@pytest.mark.parametrize("path", PATHS)
def test_stop_strings_are_cut_off_and_never_streamed(make_server: MakeServer, path: str) -> None:
    server = make_server("one two, three stop four")
    name = "stop_sequences" if path == "/v1/messages" else "stop"
    for limit in range(1, 12):
        streamed, plain = pair(server, path, limit, **{name: ["stop", "three st"]})
        assert streamed == plain, f"limit {limit}"
        assert "stop" not in str(plain).replace("'stop'", "").replace("stop_", "").replace("_stop", "")
    answer = call(server, (path, body(path, 99, False, **{name: ["ee stop"]})))[0].json()
    if path == "/v1/messages":
        assert answer["stop_reason"] == "stop_sequence"
        assert answer["stop_sequence"] == "ee stop"
        assert answer["content"] == [{"type": "text", "text": "one two, thr"}]


@pytest.mark.parametrize("path", PATHS[:1])
def test_the_tiny_model_streams_what_it_answers(tiny_server: ModelServer, path: str) -> None:
    for seed in range(6):
        streamed, plain = pair(tiny_server, path, 3 + 5 * seed, model="tiny", seed=seed, temperature=1.5)
        for answer in (streamed, plain):
            answer["usage"].pop("prompt_tokens_details")  # the second request finds the first one's prefix
        assert streamed == plain


def test_a_call_that_is_cut_off_is_no_call(make_server: MakeServer) -> None:
    server = make_server(CALL)
    path = "/v1/chat/completions"
    length = len(server.models.default.renderer.encode(CALL)[0])  # type: ignore[union-attr]
    cut_off, complete = (
        call(server, (path, body(path, limit, False)))[0].json()["choices"][0] for limit in (length - 1, length + 1)
    )
    assert cut_off["finish_reason"] == "length"
    assert "tool_calls" not in cut_off["message"]
    assert cut_off["message"]["content"].startswith('<tool_call>{"name": "add"')
    assert complete["finish_reason"] == "tool_calls"
    assert complete["message"]["content"] is None
    [tool_call] = complete["message"]["tool_calls"]
    assert tool_call["function"] == {"name": "add", "arguments": '{"a": 12, "t": "é"}'}
