"""The server: only the loopback address, only known sessions, bounded requests, nothing left behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from practicum.environments.web import play
from practicum.environments.web.experts import next_action
from practicum.environments.web.sites.server import MAX_BODY_BYTES, SiteServer
from practicum.environments.web.sites.site import Response
from practicum.environments.web.tasks import SITES, SiteTask, templates
from practicum.errors import UserError
from tests.environments.web.html_client import HtmlClient
from tests.environments.web.playing import make_task


@pytest.fixture(scope="module")
def server() -> Iterator[SiteServer]:
    with SiteServer() as site_server:
        yield site_server


def browse(server: SiteServer, task: SiteTask, session_id: str) -> HtmlClient:
    http = httpx.Client(base_url=server.base_url, cookies={"session": session_id}, trust_env=False)

    def fetch(method: str, url: str, form: dict[str, str]) -> Response:
        answer = http.request(method, url, data=form if method == "POST" else None)
        return Response(answer.status_code, answer.text, answer.headers.get("location", ""))

    return HtmlClient(fetch, "/")


@pytest.mark.parametrize("site", sorted(SITES))
def test_the_expert_solves_a_task_over_http(server: SiteServer, site: str) -> None:
    name = next(name for name, template in templates().items() if template.site == site and template.level == 3)
    task = SiteTask(make_task(name, 1))
    session_id = server.open_session(task.session)
    client = browse(server, task, session_id)
    assert client.path == task.session.start_path
    while (action := next_action(task, client.view)) is not None:
        client.act(action)
    assert task.evaluate().success
    server.close_session(session_id)
    client.goto(client.path)
    assert client.status == 403


def test_sessions_over_http_do_not_mix(server: SiteServer) -> None:
    tasks = [SiteTask(make_task("shop/cart-empty", 1)) for _ in range(2)]
    ids = [server.open_session(task.session) for task in tasks]
    browse(server, tasks[0], ids[0]).goto("/shop/empty", "POST")
    assert tasks[0].evaluate().success
    assert tasks[1].evaluate().progress == 0.0
    for session_id in ids:
        server.close_session(session_id)


def test_unknown_sessions_and_broken_requests_are_refused(server: SiteServer) -> None:
    task = SiteTask(make_task("shop/cart-empty", 1))
    session_id = server.open_session(task.session)
    valid_cookie, unknown_cookie = {"session": session_id}, {"session": "x" * 32}
    with httpx.Client(base_url=server.base_url, trust_env=False) as http:
        assert http.get("/shop/cart").status_code == 403
        assert http.get("/shop/cart", headers={"Cookie": "session=" + unknown_cookie["session"]}).status_code == 403
        cookie = {"Cookie": "session=" + valid_cookie["session"]}
        assert http.get("/shop/cart", headers=cookie).status_code == 200
        assert http.get("/favicon.ico").status_code == 204
        assert http.get("/%2e%2e/%2e%2e/etc/passwd", headers=cookie).status_code == 404
        assert http.get("/shop/..%2f..%2fetc%2fpasswd", headers=cookie).status_code == 404
        assert http.get("/shop/search?q=%ff%fe&page=999999999999999999999", headers=cookie).status_code == 200
        assert http.get("/shop/cart?" + "a=1&" * 500, headers=cookie).status_code == 400
        large = http.post("/shop/empty", headers=cookie, content=b"x" * (MAX_BODY_BYTES + 1))
        assert large.status_code == 413
        assert http.post("/shop/empty", headers=cookie, content=b"a=\xff").status_code == 400
        assert http.put("/shop/empty", headers=cookie).status_code == 501
    assert task.evaluate().progress == 0.0
    server.close_session(session_id)


def test_the_session_is_in_no_page_and_no_address(server: SiteServer) -> None:
    task = SiteTask(make_task("shop/checkout", 1))
    session_id = server.open_session(task.session)
    client = browse(server, task, session_id)
    while (action := next_action(task, client.view)) is not None:
        client.act(action)
        assert session_id not in client.path
    assert not any(session_id in body or server.base_url in body for body in client.bodies)
    server.close_session(session_id)


def test_only_the_loopback_address_is_bound(server: SiteServer) -> None:
    address = urlsplit(server.base_url)
    assert address.hostname == "127.0.0.1"
    assert address.port is not None
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for other in others:
        if str(other).startswith("127."):
            continue
        with socket.socket() as probe:
            probe.settimeout(1)
            assert probe.connect_ex((other, address.port)) != 0


def test_closing_frees_the_port_the_thread_and_the_sessions() -> None:
    before = threading.active_count()
    server = SiteServer()
    with pytest.raises(UserError, match="start"):
        server.base_url  # noqa: B018
    server.start()
    port = urlsplit(server.base_url).port
    server.open_session(SiteTask(make_task("shop/cart-empty", 1)).session)
    assert server.num_sessions == 1
    server.close()
    server.close()
    assert server.num_sessions == 0
    assert threading.active_count() <= before
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_entry_address_gives_the_cookie_of_its_session_only(server: SiteServer) -> None:
    session_id = server.open_session(SiteTask(make_task("shop/cart-empty", 1)).session)
    with httpx.Client(trust_env=False, follow_redirects=True) as http:
        page = http.get(server.entry_url(session_id))
        assert (page.status_code, page.url.path) == (200, "/shop/")
        assert session_id not in str(page.url)
        assert http.get(f"{server.base_url}/shop/cart").status_code == 200
    with httpx.Client(trust_env=False, follow_redirects=True) as http:
        assert http.get(server.entry_url("x" * 32)).status_code == 403
    server.close_session(session_id)


def test_a_task_can_be_played_by_hand() -> None:
    command = [sys.executable, "-u", "-m", "practicum.environments.web.play", "shop/cart-empty", "--seed", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[0] == "Goal: Empty cart.\n", lines
        assert lines[2] == "Progress 0.00\n"
        with httpx.Client(trust_env=False, follow_redirects=True) as http:
            page = http.get(lines[1].split()[1])
            http.post(str(page.url.join("/shop/empty")))
        rest = process.stdout.read()
        assert process.wait(10) == 0
    assert rest == "Solved\n"


def test_playing_an_unknown_template_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert play.main(["shop/bui"]) == 2
    assert "Did you mean 'shop/buy'?" in capsys.readouterr().err
