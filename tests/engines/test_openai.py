"""The openai engine against an HTTP server that answers with a real (tiny) model, and against one that misbehaves."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines import chat_client
from practicum.engines.base import Sampling
from practicum.engines.openai import OpenAIEngine, api_messages
from practicum.environment import Message
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.models import loader
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.training.objective import build_samples
from practicum.trajectory import Outcome, Trajectory, plan_attempts

SLOW_BODY = b"no such model"
CALL = {"name": "calculator", "arguments": json.dumps({"expression": "40-6"})}


class Server(BaseHTTPRequestHandler):
    """Answers from `script` (status, body) while it lasts, then with the model. A 307 names `location`."""

    location: ClassVar[str] = ""
    keys: ClassVar[list[str | None]] = []

    script: ClassVar[list[tuple[int, Any]]] = []
    requests_received: ClassVar[list[dict[str, Any]]] = []
    model: ClassVar[Any] = None
    tokenizer: ClassVar[Any] = None

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests_received.append(body)
        self.keys.append(self.headers["Authorization"])
        status, answer = self.script.pop(0) if self.script else (200, self.reply(body))
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if status == 307:
            self.send_header("Location", self.location)
        self.end_headers()
        if answer is SLOW_BODY:
            self.wfile.flush()
            time.sleep(0.5)
        self.wfile.write(data)

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        text = self.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, tokenize=False)
        ids = torch.tensor([self.tokenizer(text)["input_ids"]])
        new = self.model.generate(ids, max_new_tokens=body["max_tokens"], do_sample=False, pad_token_id=0)[
            0, ids.shape[1] :
        ]
        finish = "stop" if new[-1] == self.tokenizer.eos_token_id else "length"
        return choice({"content": self.tokenizer.decode(new, skip_special_tokens=True)}, finish)

    def log_message(self, *arguments: Any) -> None:
        return None


def choice(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": finish}]}


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    loaded = loader.load_tiny(0)
    Server.model, Server.tokenizer, Server.script, Server.requests_received = loaded.model, loaded.tokenizer, [], []
    Server.keys = []
    monkeypatch.setattr(chat_client, "FAULT_WAIT_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(chat_client, "RATE_LIMIT_WAIT_SECONDS", (0.01,))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def run_math_episodes(url: str, renderer: Renderer, count: int = 1) -> list[Trajectory]:
    engine = OpenAIEngine(url, "tiny", make_format("hf"), renderer, timeout=20)
    agent = Agent(max_turns=3, sampling=Sampling(max_tokens=6, temperature=0.0))
    planned = plan_attempts(MathEnvironment().tasks("train", count + 1)[1:], 1, 0)
    return asyncio.run(run_episodes(planned, MathEnvironment, agent, engine, renderer))


def test_episodes_of_a_served_model(url: str, renderer: Renderer) -> None:
    episodes = run_math_episodes(url, renderer, 4)
    assert all(e.scored for e in episodes)
    body = Server.requests_received[0]
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    assert body["tools"][0]["function"]["name"] == "calculator"
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("tiny", 6, 0.0)


def test_tool_calls_go_out_and_come_back_in_the_api_s_form(url: str, renderer: Renderer) -> None:
    Server.script[:] = [
        (200, choice({"content": None, "tool_calls": [{"id": "x", "type": "function", "function": CALL}]})),
        (200, choice({"content": "17"})),
    ]
    (episode,) = run_math_episodes(url, renderer)
    assert episode.turns[0].action.calls[0].arguments == {"expression": "40-6"}
    assistant, tool = Server.requests_received[1]["messages"][2:]
    assert assistant["tool_calls"][0]["function"]["name"] == "calculator"
    assert tool == {"role": "tool", "content": "34", "tool_call_id": assistant["tool_calls"][0]["id"]}


def test_a_passing_fault_is_tried_again(url: str, renderer: Renderer) -> None:
    Server.script[:] = [(503, {}), (429, {})]
    assert run_math_episodes(url, renderer)[0].scored
    assert len(Server.requests_received) >= 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, {"error": "no such model"}), "answered 400: {\"error\": \"no such model\"}"),
        ((200, {"choices": []}), "without a usable choice"),
        ((200, {"choices": [{"message": None}]}), "without a usable choice"),
    ],
)  # fmt: skip
def test_what_a_server_gets_wrong_is_an_engine_error(
    url: str, renderer: Renderer, answer: tuple[int, Any], message: str
) -> None:
    Server.script[:] = [answer]
    (episode,) = run_math_episodes(url, renderer)
    assert episode.outcome is Outcome.ENGINE_ERROR
    assert message in (episode.error or "")


def test_a_model_s_broken_arguments_are_an_observation(url: str, renderer: Renderer) -> None:
    broken = [{"id": "x", "type": "function", "function": {"name": "calculator", "arguments": "{oops"}}]
    Server.script[:] = [(200, choice({"tool_calls": broken})), (200, choice({"content": "17"}))]
    (episode,) = run_math_episodes(url, renderer)
    assert episode.outcome is Outcome.SUCCESS
    assert episode.turns[0].action.calls == ()
    assert "not valid JSON" in episode.turns[1].messages[0].content


def test_a_server_that_is_gone_stops_the_run_with_one_sentence(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_client, "FIRST_CONNECT_WAIT_SECONDS", (0.01,))
    with pytest.raises(ExceptionGroup) as raised:
        run_math_episodes("http://127.0.0.1:9", renderer)
    assert raised.group_contains(UserError, match="No server answers at .*; start it and run the same command again")


def test_its_episodes_are_refused_for_policy_gradients(url: str, renderer: Renderer) -> None:
    episodes = run_math_episodes(url, renderer)
    with pytest.raises(UserError, match="no sampling log-probs"):
        build_samples([episodes], [[np.ones(99)]], "token-mean", 1.0)


def test_an_answer_to_no_call_is_a_user_message() -> None:
    conversation = (Message("user", "q"), Message("assistant", "<tool_call>{bad"), Message("tool", "unusable"))
    assert [m["role"] for m in api_messages(conversation, make_format("hf"), True)] == ["user", "assistant", "user"]


def test_the_key_goes_to_the_server_that_was_named_and_to_no_other(
    url: str, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    Server.location = f"{url}/elsewhere"
    Server.script[:] = [(307, {})]
    (episode,) = run_math_episodes(url, renderer)
    assert episode.outcome is Outcome.ENGINE_ERROR
    assert "answered 307" in (episode.error or "")
    assert Server.keys == ["Bearer secret"]


def test_a_proxy_that_is_not_for_this_server_is_not_used(
    url: str, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert run_math_episodes(url, renderer)[0].scored


def test_an_error_whose_body_comes_slowly_does_not_hold_up_other_episodes(url: str, renderer: Renderer) -> None:
    """The event loop runs on while the body is read."""
    ticks = 0

    async def count() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def run() -> None:
        counting = asyncio.create_task(count())
        planned = plan_attempts(MathEnvironment().tasks("train", 2)[1:], 1, 0)
        engine = OpenAIEngine(url, "tiny", make_format("hf"), renderer, timeout=20)
        await run_episodes(planned, MathEnvironment, Agent(max_turns=1), engine, renderer)
        await engine.close()
        counting.cancel()

    Server.script[:] = [(400, SLOW_BODY)]
    asyncio.run(run())
    assert ticks > 10
