"""The environment `real` and its task registry. A small site of our own stands for REAL's, which are remote."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from practicum.chat.formats.web_actions import parse_action
from practicum.cli.main import main
from practicum.data.tasks import read_registry
from practicum.environment import Action
from practicum.environments.web.gateway import SiteGateway
from practicum.environments.web.real import RealEnvironment
from practicum.environments.web.real_tasks import real_tasks
from tests.environments.web.conftest import RunningBrowser

needs_agisdk = pytest.mark.skipif(importlib.util.find_spec("agisdk") is None, reason="pip install --no-deps agisdk")
SITES = {"dashdish": 11, "gocalendar": 10, "gomail": 21, "marrisuite": 1, "networkin": 10, "omnizon": 10,
         "opendining": 11, "staynb": 11, "topwork": 12, "udriver": 14, "zilloft": 10}  # fmt: skip
LOOK_ALIKE = "v2.gomail-19"
"""Asks to send an e-mail to Angela White; its script reads the e-mails that were added."""


class MailSite(BaseHTTPRequestHandler):
    """A look-alike of one page: a button that sends the e-mail, and the state at /finish."""

    sent_messages: dict[str, bool]
    requests: list[str]

    def do_GET(self) -> None:
        type(self).requests.append(self.path)
        path = urlsplit(self.path).path
        emails = [{"to": ["angela.white@example.com"], "subject": "FTA", "content": "When do you go on FTA?",
                   "sent": True, "isDraft": False}] if self.sent_messages.get("yes") else []  # fmt: skip
        if path == "/send":
            type(self).sent_messages["yes"] = True
        state = json.dumps({"differences": {"emails": {"added": emails}}, "initialfinaldiff": {"added": {}}})
        bodies = {"/": "<title>Mail</title><a href='/send'>Send</a><a href='/private?x=1'>Other</a>",
                  "/send": "<title>Sent</title>", "/finish": f"<pre>{state}</pre>"}  # fmt: skip
        body = bodies.get(path, "<title>Ready</title>").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[tuple[str, type[MailSite]]]:
    handler = type("Site", (MailSite,), {"sent_messages": {}, "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler
    server.shutdown()
    server.server_close()


@needs_agisdk
def test_the_registry_has_all_tasks_of_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "registry.json"
    assert main(["tasks", "snapshot", "--out", str(path)]) == 0
    assert "121 tasks" in capsys.readouterr().out
    content = json.loads(path.read_bytes())
    assert content["counts_by_site"] == SITES
    assert content["task_version"] == "v2"
    names = [task["task_name"] for task in content["tasks"]]
    assert names == sorted(names)
    assert names[0].startswith("v2.dashdish-")
    assert {type(task["task_id"]) for task in content["tasks"]} == {int}
    registry = read_registry(path, "real", "test")
    tasks = registry.tasks(RealEnvironment(), "test", 0)
    assert [task.hash for task in tasks] == [task.hash for task in real_tasks()]
    assert {task.split for task in tasks} == {"train", "val", "test"}
    content["tasks"][0]["fields"]["question"] = "Do something else"
    path.write_text(json.dumps(content))
    assert main(["eval", "--env", "real", "--policy", "null", "--task_registry", str(path)]) == 2
    assert "it was changed" in capsys.readouterr().err


def test_a_registry_of_any_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "web.json"
    command = ["tasks", "snapshot", "--source", "math", "--tasks", "7", "--env-arg", "levels=[2]", "--out", str(path)]
    assert main(command) == 0
    assert "7 tasks" in capsys.readouterr().out
    command = ["eval", "--env", "math", "--env-arg", "levels=[2]", "--policy", "expert", "--task_registry", str(path)]
    assert main([*command, "--out", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_bytes())["aggregated_metrics"]["success_rate"] == 1.0


@needs_agisdk
@pytest.mark.parametrize("solves", [True, False])
def test_an_episode_is_judged_by_the_script_of_the_package(
    chromium: RunningBrowser, site: tuple[str, type[MailSite]], solves: bool
) -> None:
    address, handler = site

    async def run() -> None:
        env = RealEnvironment(addresses={"gomail": address}, observe="summary")
        env.resources = {"browser": chromium.browser}  # type: ignore[assignment]
        task = next(task for task in real_tasks() if task.id == LOOK_ALIKE)
        try:
            first = await env.reset(task, 0)
            assert '[1] link "Send"' in first.messages[-1].content
            if solves:
                await env.step(Action(calls=(parse_action('click("1")'),)))
            last = await env.step(Action(content="Done."))
            assert (last.terminated, last.success, last.reward) == (True, solves, float(solves))
            assert len(last.info["evals"]) == 1
        finally:
            await env.close()
        assert parse_qs(urlsplit(handler.requests[0]).query)["task_id"] == ["gomail-19"]

    chromium.run(run())


@needs_agisdk
def test_sites_that_cannot_be_reached_are_named_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Port 9 of this machine stands for a site that is not there."""
    command = ["collect", "--env", "real", "--policy", "null", "--tasks", "1", "--out", str(tmp_path)]
    names = ",".join(f'"{name}": "http://127.0.0.1:9"' for name in SITES)
    assert main([*command, "--env-arg", f"addresses={{{names}}}"]) == 2
    error = capsys.readouterr().err
    assert "REAL's site 127.0.0.1 cannot be reached from this machine" in error
    assert "Traceback" not in error


def test_a_tunnel_leads_to_its_own_host_only() -> None:
    async def run() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read(5))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        gateway = SiteGateway({}, {"site.test": server.sockets[0].getsockname()[:2]})
        await gateway.open()
        try:
            for target, status in [("site.test:443", b"200"), ("site.test:22", b"403"), ("other.test:443", b"403")]:
                reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
                writer.write(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.split(b" ")[1] == status
                if status == b"200":
                    writer.write(b"hello")
                    assert await reader.read(5) == b"hello"
                writer.close()
        finally:
            await gateway.close()
            server.close()

    asyncio.run(run())
