"""The server, spoken to as AgentGym's clients speak: plain HTTP, their routes, their names."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from practicum.cli.main import main
from practicum.environment import Observation
from practicum.environments.agentgym import server as server_module
from practicum.environments.agentgym.babyai import BabyAI
from practicum.environments.agentgym.babyai_expert import plan
from practicum.environments.agentgym.server import EnvironmentServer, Sessions
from practicum.environments.agentgym.textcraft import TextCraft
from practicum.environments.agentgym.webshop import WebShop
from practicum.errors import UserError


class Client:
    """What AgentGym's clients send: JSON by POST, the id in the query of a GET."""

    def __init__(self, address: str) -> None:
        self.address = address

    def post(self, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body is not None else b""
        return self._send(urllib.request.Request(f"{self.address}/{path}", data=data, method="POST"))

    def get(self, path: str) -> Any:
        return self._send(urllib.request.Request(f"{self.address}/{path}"))

    @staticmethod
    def _send(request: urllib.request.Request) -> Any:
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
            return json.loads(answer.read())


def served(sessions: Sessions, visit: Callable[[Client], None]) -> None:
    async def run() -> None:
        async with EnvironmentServer(sessions) as server:
            await asyncio.to_thread(visit, Client(server.address))

    asyncio.run(run())


def test_babyai_as_its_client_sees_it() -> None:
    def visit(client: Client) -> None:
        assert client.get("") == "This is environment agentgym:babyai."
        number = client.post("create")["id"]
        started = client.post("reset", {"id": number, "data_idx": 24})  # UnlockLocalDist, seed 0
        assert started["observation"].startswith("Your goal: open the door\n")
        assert (started["reward"], started["score"], started["done"]) == (0.0, 0.0, False)
        wrong = client.post("step", {"id": number, "action": "fly"})
        assert wrong["observation"].startswith("Could not execute 'fly'.")
        assert (wrong["reward"], wrong["done"]) == (0.0, False)
        for command in plan("UnlockLocalDist", 0) or ():
            response = client.post("step", {"id": number, "action": command})
        assert response["done"]
        assert 0.5 < response["reward"] == response["score"] < 1.0
        assert client.get(f"observation?id={number}") == "The goal is reached."
        assert client.get(f"detail?id={number}") == response
        after = client.post("step", {"id": number, "action": "turn left"})
        assert (after["done"], after["reward"], after["score"]) == (True, 0.0, response["score"])
        again = client.post("reset", {"id": number, "data_idx": 24})
        assert again["observation"] == started["observation"]

    served(Sessions(BabyAI), visit)


def test_webshop_as_its_client_sees_it() -> None:
    world = WebShop()
    task = world.task_at(5)
    policy = world.expert(task)
    commands = [policy(Observation()).content for _ in range(4)]

    def visit(client: Client) -> None:
        number = client.post("create")
        assert isinstance(number, int)
        text, result = client.post("reset", {"env_idx": number, "session_id": 5})
        assert result is None
        assert text == client.get(f"observation?env_idx={number}")
        assert client.get(f"instruction_text?env_idx={number}") == task.fields["instruction"]
        assert client.get(f"available_actions?env_idx={number}") == {"has_search_bar": True, "clickables": []}
        for command in commands:
            response = client.post("step", {"env_idx": number, "action": command})
            assert set(response) >= {"state", "reward", "done", "info"}
        assert (response["reward"], response["done"], response["info"]) == (1.0, True, None)
        assert set(client.get(f"state?env_idx={number}")) == {"url", "html", "instruction_text"}
        assert client.get("list_envs") == [number]
        assert client.post("close", {"env_idx": number}) == {"closed": True}
        assert client.post("close", {"env_idx": number}) == {"closed": False}
        assert client.get("list_envs") == []

    served(Sessions(WebShop), visit)


def test_textcraft_begins_when_it_is_created() -> None:
    def visit(client: Client) -> None:
        result = client.post("create", {"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None})
        assert result["observation"].startswith("Crafting commands:\n")
        number = result["id"]
        started = client.post("reset", {"id": number, "data_idx": 100})
        goal = client.get(f"goal?id={number}")
        assert started["observation"].endswith(f"Goal: craft {goal}.")
        assert client.get(f"commands?id={number}") in started["observation"]
        response = client.post("step", {"id": number, "action": "inventory"})
        assert response["observation"] == "Inventory: You are not carrying anything."
        assert (response["reward"], response["done"]) == (0.0, False)

    served(Sessions(TextCraft), visit)


def test_what_goes_wrong_is_said() -> None:
    def visit(client: Client) -> None:
        number = client.post("create")["id"]
        for answer in (
            client.post("step", {"id": 99, "action": "turn left"}),
            client.post("step", {"id": number, "action": "turn left"}),
            client.post("reset", {"id": number, "data_idx": "three"}),
            client.post("reset", {"id": number, "data_idx": -1}),
            client.post("reset", {"data_idx": 1}),
            client.get(f"observation?id={number}"),
            client.get("observation"),
        ):
            assert set(answer) == {"error"}
        client.post("reset", {"id": number, "data_idx": 1})
        assert "action must be a text" in client.post("step", {"id": number, "action": 3})["error"]
        for send in (
            lambda: client.get("nonsense"),
            lambda: client.get("goal?id=0"),
            lambda: client.post("observation"),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                send()
            assert refused.value.code == 404
        host = client.address.removeprefix("http://")
        for body in (b"{", b"[1]", b'"text"'):
            connection = http.client.HTTPConnection(host, timeout=30)
            connection.request("POST", "/step", body=body)
            assert connection.getresponse().status == 400
            connection.close()

    served(Sessions(BabyAI), visit)


def raw(address: str, request: bytes) -> tuple[int, bytes]:
    """Send bytes and return the status and everything that comes back until the server closes."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return (int(answer.split()[1]) if answer else 0), answer


def request(path: str, body: bytes = b"", *more: str, host: str = "localhost") -> bytes:
    lines = [f"POST /{path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", "Connection: close", *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_requests_of_web_pages_and_for_other_hosts_are_refused() -> None:
    def visit(client: Client) -> None:
        assert raw(client.address, request("create"))[0] == 200
        for refused in (
            request("create", b"", "Origin: http://localhost:36001"),
            request("create", b"", "Sec-Fetch-Site: same-origin"),
            request("create", host="rebound.example:36001"),
            request("create", host="["),
        ):
            assert raw(client.address, refused)[0] == 403
        assert client.get("list_envs") == [0]

    served(Sessions(TextCraft), visit)


def test_hostile_bodies_get_an_answer(capfd: pytest.CaptureFixture[str]) -> None:
    def visit(client: Client) -> None:
        number = client.post("create")["id"]
        assert raw(client.address, request("step", b"[" * 100_000))[0] == 400
        assert raw(client.address, request("step", b'{"id": ' * 100_000))[0] == 400
        assert raw(client.address, request("step", b"", "Transfer-Encoding: chunked"))[0] == 400
        body = json.dumps({"id": number, "action": "\ud83d craft"}).encode()
        status, answer = raw(client.address, request("step", body))
        assert status == 200
        assert "\ud83d" in json.loads(answer.partition(b"\r\n\r\n")[2])["observation"]
        assert raw(client.address, b"GET http://[ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")[0] == 400

    served(Sessions(TextCraft), visit)
    assert "Traceback" not in capfd.readouterr().err


def test_a_client_that_sends_nothing_more_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "READ_TIMEOUT_SECONDS", 0.2)

    def visit(client: Client) -> None:
        assert raw(client.address, b"POST /create HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")[0] == 0

    served(Sessions(TextCraft), visit)


def test_listening_on_all_addresses_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stand_in(name: str, host: str, port: int, options: Any, on_start: Callable[[str], None]) -> None:
        on_start(f"http://{host}:{port}")

    monkeypatch.setattr(server_module, "serve", stand_in)
    warning = "Everybody who can reach this machine can use these environments."
    assert main(["envs", "serve", "agentgym:textcraft", "--host", "0.0.0.0"]) == 0
    assert warning in capsys.readouterr().out
    assert main(["envs", "serve", "agentgym:textcraft"]) == 0
    assert warning not in capsys.readouterr().out


def test_the_longest_unused_makes_room() -> None:
    def visit(client: Client) -> None:
        numbers = [client.post("create")["id"] for _ in range(2)]
        client.post("reset", {"id": numbers[0], "data_idx": 0})
        third = client.post("create")["id"]
        assert client.get("list_envs") == [numbers[0], third]
        assert "error" in client.post("reset", {"id": numbers[1], "data_idx": 0})

    served(Sessions(BabyAI, limit=2), visit)


def test_many_clients_at_once_do_not_disturb_each_other() -> None:
    sessions = Sessions(BabyAI)

    async def run() -> list[float]:
        async with EnvironmentServer(sessions) as server:
            client = Client(server.address)

            def episode(index: int) -> float:
                number = client.post("create")["id"]
                client.post("reset", {"id": number, "data_idx": index})
                level = sessions.first.task_at(index).fields
                for command in plan(level["level"], level["seed"]) or ():
                    response = client.post("step", {"id": number, "action": command})
                return float(response["score"]) if response["done"] else -1.0

            jobs: list[Awaitable[float]] = [asyncio.to_thread(episode, index) for index in (0, 1, 2, 3, 4, 8, 9, 12)]
            return list(await asyncio.gather(*jobs))

    assert all(0.5 < score <= 1.0 for score in asyncio.run(run()))


def test_a_port_that_is_taken_is_one_sentence() -> None:
    async def run() -> None:
        async with EnvironmentServer(Sessions(BabyAI)) as server:
            port = int(server.address.rpartition(":")[2])
            with pytest.raises(UserError, match="choose another --port"):
                EnvironmentServer(Sessions(BabyAI), port=port)

    asyncio.run(run())


def test_the_command_serves_with_options() -> None:
    command = [sys.executable, "-m", "practicum.cli", "envs", "serve", "agentgym:babyai", "--port", "0"]
    process = subprocess.Popen([*command, "--env-arg", "observation=short"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        client = Client(process.stdout.readline().split()[2])
        number = client.post("create")["id"]
        response = client.post("reset", {"id": number, "data_idx": 4})["observation"]
        assert response.startswith("Your goal: go to a green key\nyellow key 1: ahead 1 left 1\n")
    finally:
        process.terminate()
        assert process.wait(120) == 130


def test_a_signal_that_interrupts_no_wait_of_the_main_thread_ends_the_server() -> None:
    command = [sys.executable, "-m", "practicum.cli", "envs", "serve", "agentgym:babyai", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("agentgym:babyai at ")
        threads = {int(name) for name in os.listdir(f"/proc/{process.pid}/task")} - {process.pid}
        os.kill(max(threads), signal.SIGTERM)  # Linux delivers it to the thread that is named
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait(60)


def test_only_agentgyms_worlds_are_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "serve", "math"]) == 2
    assert "only agentgym:… can be served" in capsys.readouterr().err
    assert main(["envs", "serve"]) == 2
    assert "practicum envs serve NAME" in capsys.readouterr().err
