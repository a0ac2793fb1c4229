"""The server on a socket: clients that go away, that stop reading, and a signal in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from practicum.cli.main import main
from practicum.serving.app import ModelServer, make_app
from practicum.serving.http import EventStream
from practicum.serving.openai_chat import ChatCompletions
from practicum.serving.server import http_server, listen, serve_in_background
from practicum.serving.server import serve as serve_until_signal
from practicum.serving.service import ClientLimits
from tests.serving.conftest import MakeServer, until
from tests.serving.streams import joined_stream

CHAT = "/v1/chat/completions"
TEXT = "word " * 40


def body(stream: bool = True) -> dict[str, Any]:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return {"model": "script", "messages": [{"role": "user", "content": "x"}], "stream": stream, **options}


def engine_of(server: ModelServer) -> Any:
    assert server.models is not None
    return server.models.default.engine


def serve(server: ModelServer, use: Callable[[str, httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with (
            serve_in_background(make_app(server), listen("127.0.0.1", 0)) as url,
            httpx.AsyncClient(timeout=20) as client,
        ):
            await use(url, client)

    asyncio.run(run())


def test_a_client_that_disconnects_is_cancelled_and_others_are_not_affected(make_server: MakeServer) -> None:
    server = make_server(TEXT, seconds_per_token=0.005)

    async def use(url: str, client: httpx.AsyncClient) -> None:
        others = [asyncio.create_task(client.post(f"{url}{CHAT}", json=body())) for _ in range(4)]
        async with client.stream("POST", f"{url}{CHAT}", json=body()) as response:
            async for _ in response.aiter_text():
                break  # after its first piece
        unstreamed = asyncio.create_task(client.post(f"{url}{CHAT}", json=body(stream=False)))
        await until(lambda: len(engine_of(server).requests) == 6)
        unstreamed.cancel()
        await until(lambda: engine_of(server).num_cancelled == 2)
        for answer in await asyncio.gather(*others):
            assert joined_stream(CHAT, answer.text)["choices"][0]["content"] == TEXT
        await until(lambda: server.queue.running == 0)
        assert server.metrics.finished["abort"] == 2

    serve(server, use)


def test_a_client_that_reads_nothing_is_dropped(make_server: MakeServer) -> None:
    """Its stream is longer than what the sockets take."""
    server = make_server("é" * 1500, limits=ClientLimits(send_seconds=0.3))

    async def use(url: str, client: httpx.AsyncClient) -> None:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        data = json.dumps({**body(), "n": 8, "logprobs": True, "top_logprobs": 20}).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        await writer.drain()
        await reader.readline()
        await until(lambda: server.queue.running > 0)
        response = await client.post(f"{url}{CHAT}", json={**body(), "max_tokens": 5})
        assert response.status_code == 200
        await until(lambda: server.queue.running == 0)
        writer.close()

    serve(server, use)


def test_a_signal_lets_replies_end_and_refuses_new_ones(make_server: MakeServer) -> None:
    server = make_server(TEXT, seconds_per_token=0.005)

    async def run() -> None:
        listener = listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        web = http_server(make_app(server), 20)
        task = asyncio.create_task(web._serve([listener]))
        await until(lambda: web.started)
        async with httpx.AsyncClient(timeout=20) as client:
            open_streams = [asyncio.create_task(client.post(f"{url}{CHAT}", json=body())) for _ in range(3)]
            await until(lambda: server.queue.running == 3)
            web.handle_exit(signal.SIGTERM, None)
            for answer in await asyncio.gather(*open_streams):
                assert joined_stream(CHAT, answer.text)["choices"][0]["content"] == TEXT
            await asyncio.wait_for(task, 10)
            try:
                refused = (await client.post(f"{url}{CHAT}", json=body())).status_code
            except httpx.TransportError:
                refused = 503
            assert refused == 503

    asyncio.run(run())


def test_a_request_that_takes_too_long_ends_with_an_error(make_server: MakeServer) -> None:
    server = make_server(TEXT, seconds_per_token=0.02, limits=ClientLimits(seconds=0.2))

    async def use(url: str, client: httpx.AsyncClient) -> None:
        plain = await client.post(f"{url}{CHAT}", json=body(stream=False))
        assert (plain.status_code, plain.json()["error"]["code"]) == (504, "timeout")
        streamed = await client.post(f"{url}{CHAT}", json=body())
        last = streamed.text.strip().splitlines()[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
        await until(lambda: server.queue.running == 0)

    serve(server, use)


def test_a_long_prompt_does_not_delay_other_requests(make_server: MakeServer) -> None:
    """Texts that cannot fit are refused unread, long ones are encoded beside the others and within the timeout."""
    server = make_server("x", limits=ClientLimits(seconds=0.2))
    engine_of(server).decoder.shape.context = 1 << 20
    long = "word and more " * 100_000
    message = {"model": "script", "messages": [{"role": "user", "content": long}]}
    requests = [
        ("/tokenize", {"prompt": long}),
        ("/v1/completions", {"model": "script", "prompt": long}),
        (CHAT, message),
    ]

    async def use(url: str, client: httpx.AsyncClient) -> None:
        for path, request_body in requests:
            answer = asyncio.create_task(client.post(f"{url}{path}", json=request_body))
            slowest = 0.0
            while not answer.done():
                started = time.monotonic()
                assert (await client.get(f"{url}/health")).status_code == 200
                slowest = max(slowest, time.monotonic() - started)
            assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (504, "timeout")
            assert slowest < 2.0  # it takes milliseconds; the bound is for busy machines
        engine_of(server).decoder.shape.context = 64
        for path, request_body in requests:
            answered = await client.post(f"{url}{path}", json=request_body)
            assert (answered.status_code, answered.json()["error"]["code"]) == (400, "context_length_exceeded")

    serve(server, use)


def test_a_fault_within_a_stream_ends_it_with_an_error() -> None:
    """Not with a connection that breaks off."""

    async def texts() -> AsyncIterator[str]:
        yield "data: {}\n\n"
        raise KeyError("a fault of ours")

    events_sent: list[Any] = []

    async def send(message: Any) -> None:
        events_sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    asyncio.run(EventStream(texts(), ChatCompletions(), 60)({"type": "http"}, receive, send))
    error = json.loads(events_sent[-2]["body"].decode().removeprefix("data: "))
    assert error["error"]["code"] == "internal_error"
    assert events_sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@pytest.mark.parametrize("num_steps", range(6))
def test_ctrl_c_while_the_server_starts_leaves_no_traceback(
    make_server: MakeServer, num_steps: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C cancels the main task, at any step of the start."""

    async def run() -> None:
        task = asyncio.create_task(serve_until_signal(make_server("x"), listen("127.0.0.1", 0), "127.0.0.1", 1))
        for _ in range(num_steps):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert "Traceback" not in caplog.text + capfd.readouterr().err
    assert not [record for record in caplog.records if record.exc_info]


def test_ctrl_c_while_the_model_loads_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("practicum.serving.served_models.ModelLoader.load_base", interrupt)
    assert main(["serve", "tiny", "--port", "0"]) == 130
    assert capsys.readouterr().err == "\npracticum: stopped.\n"
