"""The planner's client of an OpenAI-compatible server, against a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from practicum.environment import Message
from practicum.errors import EngineError
from practicum.planner import Planner
from practicum.planner.llm_client import OpenAIClient, confidence_of

REPLY = '{"decompose_further": false}'


class Handler(BaseHTTPRequestHandler):
    """Answers with `answer` and keeps the bodies of requests."""

    answer: ClassVar[Any] = None
    bodies: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        Handler.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        data = json.dumps(Handler.answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        return None


@pytest.fixture
def url() -> Iterator[str]:
    logprobs = {"content": [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -3.0}]}
    Handler.answer = {"choices": [{"message": {"content": REPLY}, "logprobs": logprobs}]}
    Handler.bodies = []
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_messages_and_settings_are_sent_and_text_and_log_probs_come_back(url: str) -> None:
    async def ask() -> Any:
        client = OpenAIClient("some-model", url, temperature=0.2)
        try:
            return await client.reply([Message("user", "Plan.")], response_format={"type": "json_object"})
        finally:
            await client.close()

    reply = asyncio.run(ask())
    assert reply.text == REPLY
    assert confidence_of(reply) == pytest.approx(0.13533528)
    (body,) = Handler.bodies
    assert body["messages"] == [{"role": "user", "content": "Plan."}]
    assert (body["model"], body["temperature"], body["response_format"]) == ("some-model", 0.2, {"type": "json_object"})


def test_a_planner_asks_the_server_that_the_environment_names(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    dag = asyncio.run(Planner("some-model").plan("buy a lamp"))
    assert len(dag) == 1
    assert "Current task: buy a lamp" in Handler.bodies[0]["messages"][0]["content"]


def test_an_answer_without_a_choice_is_an_engine_error(url: str) -> None:
    Handler.answer = {"choices": []}
    with pytest.raises(EngineError, match="without a usable choice"):
        asyncio.run(OpenAIClient("some-model", url).reply([Message("user", "Plan.")]))
