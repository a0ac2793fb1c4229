"""The HTTP client of a chat server, against a server of plain sockets that stalls, limits, floods and redirects."""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from practicum.engines import chat_client
from practicum.engines.chat_client import ChatClient, retry_after
from practicum.engines.server_check import check_server
from practicum.errors import EngineError, UserError
from practicum.utils.concurrency import Deadline

OK = {"choices": []}
Answer = Callable[[socket.socket], None]


class Server:
    """Reads requests and gives each connection's request to `answer`, with the number of requests so far."""

    def __init__(self, answer: Callable[[int, socket.socket], None]) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.times: list[float] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/v1"
        self.closed = threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        with connection:
            data = b""
            while b"\r\n\r\n" not in data:
                data += connection.recv(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            length = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l")]
            while length and len(body) < length[0]:
                body += connection.recv(65536)
            self.requests.append(head)
            self.times.append(time.monotonic())
            try:
                self.answer(len(self.requests), connection)
            except OSError:
                return  # the client has gone

    def close(self) -> None:
        self.closed.set()
        self.socket.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[int, socket.socket], None]], Server]]:
    servers: list[Server] = []

    def start(answer: Callable[[int, socket.socket], None]) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


Serve = Callable[[Callable[[int, socket.socket], None]], Server]


def send(connection: socket.socket, status: int, body: bytes = b"{}", **headers: str) -> None:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)


def ok(connection: socket.socket) -> None:
    send(connection, 200, json.dumps(OK).encode())


def post(url: str, count: int = 1, seconds: float = 20.0) -> list[Any]:
    async def run() -> list[Any]:
        client = ChatClient(url, 20.0)
        try:
            requests = [Deadline(seconds, "engine").of(client.post({"n": n})) for n in range(count)]
            return await asyncio.gather(*requests, return_exceptions=True)
        finally:
            await client.close()

    return asyncio.run(run())


def test_an_error_without_its_body_delays_only_its_own_request(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth request gets a 500 whose body never comes; it is tried again after ERROR_BODY_SECONDS."""
    monkeypatch.setattr(chat_client, "ERROR_BODY_SECONDS", 0.2)
    monkeypatch.setattr(chat_client, "FAULT_WAIT_SECONDS", (0.01, 0.01, 0.01))

    def answer(request_index: int, connection: socket.socket) -> None:
        if request_index % 4 == 0:
            connection.sendall(b"HTTP/1.1 500 X\r\nContent-Length: 100\r\n\r\n")
            server.closed.wait(30)
        ok(connection)

    server = serve(answer)
    start = time.monotonic()
    assert post(server.url, 12) == [OK] * 12
    assert time.monotonic() - start < 15.0, "a body that is waited for takes 20 seconds"


def test_ctrl_c_takes_effect_at_once_while_a_body_is_awaited(serve: Serve) -> None:
    def answer(request_index: int, connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 500 X\r\nContent-Length: 100\r\n\r\n")
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        server.closed.wait(30)

    server = serve(answer)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        post(server.url)
    assert time.monotonic() - start < 15.0, "a body that is waited for takes 20 seconds"


def test_a_rate_limit_is_waited_for_by_all_requests_and_outside_their_deadline(serve: Serve) -> None:
    """The deadline of two seconds is shorter than the wait of three that is asked for."""
    allowed_from = time.monotonic() + 3.0

    def answer(request_index: int, connection: socket.socket) -> None:
        if time.monotonic() < allowed_from:
            send(connection, 429, Retry_After="3")
        else:
            ok(connection)

    server = serve(answer)
    assert post(server.url, 10, seconds=2.0) == [OK] * 10
    assert min(server.times[10:]) - server.times[0] >= 2.9
    assert len(server.requests) <= 30


def test_a_rate_limit_beyond_the_budget_fails_at_once(serve: Serve) -> None:
    server = serve(lambda request_index, connection: send(connection, 429, b"daily quota", Retry_After="86400"))
    (error,) = post(server.url)
    assert isinstance(error, EngineError)
    assert "answered 429: daily quota" in str(error)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("3", 3.0), ("0.5", 0.5), ("-4", 0.0), ("nan", None), ("soon", None),
     ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0)],
)  # fmt: skip
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after(value) == seconds


def test_retry_after_a_date_to_come() -> None:
    assert 58 < (retry_after(email.utils.formatdate(time.time() + 60, usegmt=True)) or 0) <= 60


def test_an_answer_without_end_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_client, "MAX_ANSWER_BYTES", 1 << 20)
    bytes_sent = 0

    def answer(request_index: int, connection: socket.socket) -> None:
        nonlocal bytes_sent
        connection.sendall(b'HTTP/1.1 200 X\r\nContent-Length: 99999999999\r\n\r\n"')
        while True:
            bytes_sent += connection.send(b"x" * 65536)

    (error,) = post(serve(answer).url)
    assert isinstance(error, EngineError)
    assert "more than 1 MiB" in str(error)
    assert bytes_sent < 64 << 20  # the rest of it is in buffers of the kernel


def test_nested_json_is_an_engine_error(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_client, "FAULT_WAIT_SECONDS", ())
    (error,) = post(serve(lambda request_index, connection: send(connection, 200, b"[" * 100_000)).url)
    assert isinstance(error, EngineError)


def test_many_failures_in_a_row_stop_the_run(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_client, "FAULT_WAIT_SECONDS", ())
    monkeypatch.setattr(chat_client, "MAX_FAILURES_IN_A_ROW", 5)
    errors = post(serve(lambda request_index, connection: send(connection, 502, b"bad gateway")).url, 5)
    assert [type(error) for error in errors].count(EngineError) == 4
    (last,) = (error for error in errors if isinstance(error, UserError))
    assert "5 requests in a row failed" in str(last)
    assert "run the same command again" in str(last)


def post_to(answers: list[int | None], count: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Post `count` times, one after the other, to a server that answers with these statuses; None refuses the
    connection, and so does everything after the last one."""

    def answer(request: httpx.Request) -> httpx.Response:
        status = answers.pop(0) if answers else None
        if status is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(status, stream=httpx.ByteStream(json.dumps(OK).encode()))

    async def run() -> list[Any]:
        client = ChatClient("http://127.0.0.1/v1", 20.0)
        http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        monkeypatch.setattr(client, "http_client", lambda: http)
        return [(await asyncio.gather(client.post({}), return_exceptions=True))[0] for _ in range(count)]

    return asyncio.run(run())


def test_a_server_that_never_answered_is_not_waited_for_as_one_that_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(chat_client.FIRST_CONNECT_WAIT_SECONDS) <= 3
    monkeypatch.setattr(chat_client, "FIRST_CONNECT_WAIT_SECONDS", (0.0,))
    monkeypatch.setattr(chat_client, "CONNECT_WAIT_SECONDS", (0.0,) * 5)
    monkeypatch.setattr(chat_client, "FAULT_WAIT_SECONDS", (0.0,))
    [error] = post_to([None, None, 200], 1, monkeypatch)
    assert isinstance(error, UserError)
    assert "No server answers at" in str(error)
    assert post_to([None, 200], 1, monkeypatch) == [OK]
    assert post_to([200, *[None] * 5, 200], 2, monkeypatch) == [OK, OK]
    assert post_to([503, *[None] * 5, 200], 1, monkeypatch) == [OK], "an error is an answer too"
    assert isinstance(post_to([200], 2, monkeypatch)[1], UserError)


def test_the_key_does_not_follow_a_redirect(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a request for a reply nor in the check before the first one."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    other = serve(lambda request_index, connection: ok(connection))
    server = serve(lambda request_index, connection: send(connection, 307, Location=other.url))
    (error,) = post(server.url)
    assert isinstance(error, EngineError)
    with pytest.raises(UserError, match="redirects to"):
        check_server(server.url, "m")
    assert other.requests == []
    assert [b"Authorization: Bearer secret" in head for head in server.requests] == [True, True]
