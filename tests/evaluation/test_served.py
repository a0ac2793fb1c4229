"""`practicum eval --url` against a real server: the tiny model's own engine behind OpenAI's routes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from practicum.chat.renderer import Renderer
from practicum.cli.main import main
from practicum.data import store
from practicum.engines import chat_client
from practicum.engines.base import Request as Wanted
from practicum.engines.base import Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Message, Observation
from practicum.evaluation.result import read_result
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.task import Task
from practicum.trajectory import StopReason

uvicorn = pytest.importorskip("uvicorn")
starlette = pytest.importorskip("starlette.applications")

from starlette.requests import Request  # noqa: E402
from starlette.responses import JSONResponse, Response  # noqa: E402
from starlette.routing import Route  # noqa: E402


class Served:
    """A server with one model, `tiny-served`. `falls` answers are given before it breaks down."""

    def __init__(self) -> None:
        loaded = loader.load_tiny(0)
        self.renderer = Renderer(loaded.tokenizer, None, loaded.end_ids)
        self.engine = LocalEngine(Decoder(loaded.model), self.renderer)
        self.answered = 0
        self.falls: int | None = None
        self.listing = True
        self.key: str | None = None
        routes = [Route("/v1/models", self.models), Route("/v1/chat/completions", self.chat, methods=["POST"])]
        config = uvicorn.Config(starlette.Starlette(routes=routes), port=0, log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    async def models(self, request: Request) -> Response:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": "who are you?"}, 401)
        if not self.listing:
            return JSONResponse({"error": "not here"}, 404)
        return JSONResponse({"object": "list", "data": [{"id": "tiny-served", "object": "model"}]})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        if self.falls is not None and self.answered >= self.falls:
            return JSONResponse({"error": "out of memory \x1b[31m"}, 500)
        self.answered += 1
        messages = tuple(Message(row["role"], row["content"] or "") for row in body["messages"])
        spans = self.renderer.start(messages, tuple(body.get("tools") or ()))
        ids = tuple(id for span in spans for id in span.ids)
        sampling = Sampling(body["temperature"], max_tokens=body["max_tokens"], seed=body["seed"])
        task = Task("x", "served", "test", {})
        reply = await self.engine.generate(Wanted(ids, sampling, task, Observation(()), messages))
        text = self.renderer.decode(reply.ids)
        finish = "length" if reply.stop_reason is StopReason.LENGTH else "stop"
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
        return JSONResponse({"object": "chat.completion", "choices": [choice]})

    def __enter__(self) -> Served:
        self.thread.start()
        deadline = time.monotonic() + 60
        while not self.server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        return self

    def __exit__(self, *arguments: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}/v1"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(chat_client, "FAULT_WAIT_SECONDS", (0.01, 0.01))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with Served() as result:
        yield result


def command(served: Served, out: Path | None = None, *more: str) -> list[str]:
    words = ["eval", "--env", "math", "--tasks", "6", "--max-turns", "1", "--max-tokens", "8", "--url", served.url,
             "--policy", "tiny-served", *more]  # fmt: skip
    return words if out is None else [*words, "--out", str(out)]


def test_a_served_model_answers_as_it_does_at_home(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same panel, the same replies, the same result, whichever side of the wire the model is on."""
    away, home = tmp_path / "away.json", tmp_path / "home.json"
    assert main(command(served, away)) == 0
    shown = capsys.readouterr().out
    panel = str(tmp_path / "away.run" / "panel.json")
    assert main(["eval", "--env", "math", "--max-turns", "1", "--max-tokens", "8", "--policy", "tiny", "--panel", panel,
                 "--out", str(home)]) == 0  # fmt: skip
    remote, local = read_result(away), read_result(home)
    assert remote.panel == local.panel
    assert f"panel {remote.panel}" in shown
    assert remote.settings["url"] == served.url
    assert remote.settings["stage"] == "server"
    replies = [
        [episode.turns[0].reply for episode in store.read_episodes(tmp_path / f"{name}.run" / "episodes")]
        for name in ("away", "home")
    ]
    assert len(replies[0]) == 6
    assert replies[0] == replies[1]
    assert [(s.task, s.outcome, s.reward) for s in remote.attempts] == [
        (s.task, s.outcome, s.reward) for s in local.attempts
    ]
    assert main(["compare", str(home), str(away)]) == 0
    assert "No difference shown" in capsys.readouterr().out


def test_a_server_that_broke_down_costs_only_what_it_did_not_answer(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served.falls = 2
    out = tmp_path / "r.json"
    assert main(command(served, out, "--concurrency", "1")) == 0
    shown = capsys.readouterr().out
    assert "n = 2, not scored 4" in shown
    assert "not scored: 4 engine_error" in shown
    assert "answered 500" in shown
    assert "\x1b" not in shown
    assert "the same command again runs these" in shown
    assert read_result(out).metrics()["errors"] == 4
    served.falls, before = None, served.answered
    assert main(command(served, out, "--concurrency", "1")) == 0
    assert served.answered - before == 4
    assert "0/4 episodes" in capsys.readouterr().err
    assert len(read_result(out).scored) == 6
    served.server.should_exit = True
    served.thread.join(10)
    assert main(command_of_ended(out, read_result(out).settings["url"])) == 0  # all is there: nobody is asked


def command_of_ended(out: Path, url: str) -> list[str]:
    return ["eval", "--env", "math", "--tasks", "6", "--max-turns", "1", "--max-tokens", "8", "--url", url, "--policy",
            "tiny-served", "--concurrency", "1", "--out", str(out)]  # fmt: skip


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of an error."""
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if line.startswith("practicum: ")]
    assert len(lines) == 1
    assert "Traceback" not in shown.err
    return lines[0]


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    started = time.monotonic()
    assert main(["eval", "--env", "math", "--url", url, "--policy", "m"]) == 2
    assert f"No server answers at {url} (" in error_line(capsys)
    assert time.monotonic() - started < 30  # not three hundred tasks' retries


def test_a_model_that_the_server_has_not(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command(served), "--policy", "tiny-serve"]) == 2
    assert error_line(capsys).endswith(
        "has no model 'tiny-serve'; --policy is its name there. Did you mean 'tiny-served'?"
    )


def test_addresses_and_keys(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for url, message in [
        ("localhost:8000", "give the address of a server, such as http://localhost:8000/v1"),
        (served.url.removesuffix("/v1"), "should it end in /v1?"),
        ("http://[oops/v1", "No server answers"),
    ]:
        assert main(["eval", "--env", "math", "--tasks", "2", "--url", url, "--policy", "tiny-served"]) == 2
        assert message in error_line(capsys)
    served.key = "secret"
    assert main(command(served)) == 2
    assert "put its key into OPENAI_API_KEY" in error_line(capsys)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert main(command(served, tmp_path / "r.json")) == 0
    assert "secret" not in (tmp_path / "r.json").read_text() + json.dumps(_everything(tmp_path / "r.run"))


def _everything(folder: Path) -> dict[str, Any]:
    return {str(path): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_server_without_a_list_of_models_is_taken_at_its_word(served: Served) -> None:
    served.listing = False
    assert main(command(served)) == 0
