"""Pages that mean no good: they end their own episode, reach nobody, and write nothing."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import psutil
import pytest

from practicum.chat.formats.web_actions import parse_action
from practicum.environments.web.browser import Browser
from practicum.environments.web.gateway import HttpRequest, HttpResponse, folder_handler
from practicum.environments.web.observation import PageView
from practicum.environments.web.page_actions import perform
from practicum.environments.web.session import MAX_ELEMENTS, MAX_TABS, ActionFailed, BrowserSession
from tests.environments.web.conftest import RunningBrowser, open_page, pages

PATIENCE_SECONDS = 1.5
LIMIT_SECONDS = 60.0
"""What takes longer has failed, on a machine of any speed."""
FINE = "<title>Fine</title><h1>Fine</h1>"


async def visit(session: BrowserSession, path: str, *actions: str) -> PageView:
    """Go to a page as an agent would, whatever the page thinks of it."""
    for action in (f'goto("http://a.test{path}")', *actions):
        with contextlib.suppress(ActionFailed):
            await perform(session, parse_action(action))
        await session.wait_until_idle()
        await session.view()
    return await session.view()


async def can_load_a_page(browser: Browser) -> bool:
    """Whether the browser serves another episode."""
    session = await open_page(browser, {"/": FINE})
    view = await session.view()
    await session.close()
    return view.title == "Fine"


HANGING = {
    "busy loop": "<script>setTimeout(() => { for (;;); }, 20)</script>",
    "alert loop": "<script>for (;;) alert('again')</script>",
    "prompts that ask for a file": "<script>for (;;) prompt('Path of a local file?')</script>",
}


@pytest.mark.parametrize(
    "kind", ["busy loop", "alert loop", pytest.param("prompts that ask for a file", marks=pytest.mark.slow)]
)
def test_a_page_that_hangs_ends_its_own_episode_only(chromium: RunningBrowser, kind: str) -> None:
    async def run() -> None:
        browser = chromium.browser
        before = browser.num_sessions
        session = await browser.new_session({"a.test": pages({"/": HANGING[kind]})})
        hanging = asyncio.create_task(asyncio.wait_for(visit(session, "/", "noop(500)"), PATIENCE_SECONDS))
        assert await can_load_a_page(browser)
        with pytest.raises(TimeoutError):
            await hanging
        async with asyncio.timeout(LIMIT_SECONDS):
            await session.close()
        assert browser.num_sessions == before
        assert await can_load_a_page(browser)

    chromium.run(run())


@pytest.mark.parametrize("paths", [["/script"], pytest.param(["/refresh", "/script"], marks=pytest.mark.slow)])
def test_endless_redirects_come_to_an_end(chromium: RunningBrowser, paths: list[str]) -> None:
    site = {
        "/loop": HttpResponse(302, headers={"Location": "/loop"}),
        "/script": "<script>location = '/script?' + Math.random()</script>",
        "/refresh": "<meta http-equiv=refresh content=0>",
    }

    async def run() -> None:
        session = await chromium.browser.new_session({"a.test": pages(site)})
        try:
            view = await visit(session, "/loop")
            assert (view.nodes, view.notes) == ((), ("The page could not be loaded.",))
            for path in paths:
                async with asyncio.timeout(LIMIT_SECONDS):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(visit(session, path), 10)
        finally:
            await session.close()
        assert await can_load_a_page(chromium.browser)

    chromium.run(run())


def test_windows_are_limited_and_need_a_click(chromium: RunningBrowser) -> None:
    site = {
        "/": """<script>for (let i = 0; i < 8; i++) window.open('/x')</script>
                <button onclick="for (let i = 0; i < 8; i++) window.open('/x')">Open</button>""",
        "/x": FINE,
    }

    async def run() -> None:
        session = await open_page(chromium.browser, site)
        try:
            assert len(session.tabs) == 1
            await visit(session, "/", *['click("1")', "tab_focus(0)"] * MAX_TABS)
            assert len(session.tabs) <= MAX_TABS
        finally:
            await session.close()

    chromium.run(run())


def test_a_page_cannot_access_other_hosts_or_files(chromium: RunningBrowser, tmp_path: Path) -> None:
    """Also by a redirect, to another port of this machine, where a server counts."""
    num_reached = 0

    async def record_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_reached
        num_reached += 1
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(record_connection, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        other = f"127.0.0.1:{port}"
        (tmp_path / "secret.html").write_text("<title>secret</title>")
        script = f"""<script>
          fetch('http://{other}/a', {{method: 'POST', mode: 'no-cors', body: 'x'}}).catch(() => 0);
          fetch('/to').catch(() => 0);
          new Image().src = 'http://{other}/b'; new Image().src = 'http://somewhere.example/c';
          try {{ new WebSocket('ws://{other}/d') }} catch {{}}
          navigator.sendBeacon('http://{other}/e', 'x');
          new Worker(URL.createObjectURL(new Blob(["fetch('http://{other}/f')"])));
          fetch('file://{tmp_path}/secret.html').then(() => document.title = 'read', () => document.title = 'not read');
        </script><iframe src="file://{tmp_path}/secret.html"></iframe><a href="http://{other}/g">Away</a>"""
        site = {"/": script, "/to": HttpResponse(307, headers={"Location": f"http://{other}/h"}), "/fine": FINE}
        session = await open_page(chromium.browser, site)
        try:
            view = await session.view()
            assert view.title == "not read"
            assert "secret" not in str(view.nodes)
            await perform(session, parse_action('click("1")'))
            await session.wait_until_idle()
            view = await session.view()
            assert "is not part of this task" in " ".join(view.notes)
            for address in (
                f"file://{tmp_path}/secret.html",
                "chrome://version",
                f"http://{other}/",
                "data:text/html,x",
            ):
                with pytest.raises(ActionFailed, match="not part of this task"):
                    await perform(session, parse_action(f'goto("{address}")'))
            view = await visit(session, "/to")
            assert view.url != f"http://{other}/h"
            assert {other, "somewhere.example"} <= set(session.gateway.refused)
        finally:
            await session.close()
            server.close()

    chromium.run(run())
    assert num_reached == 0


def test_a_download_is_refused(chromium: RunningBrowser) -> None:
    attachment = HttpResponse(body=b"x", headers={"Content-Disposition": "attachment; filename=evil-download.txt"})
    site = {"/": "<a href=/file>File</a><a download=evil-download.txt href='data:text/plain,x'>Data</a>",
            "/file": attachment}  # fmt: skip

    async def run() -> None:
        session = await open_page(chromium.browser, site)
        try:
            for bid in ("1", "2"):
                await perform(session, parse_action(f'click("{bid}")'))
                await session.wait_until_idle()
                async with asyncio.timeout(LIMIT_SECONDS):
                    while "A download was refused." not in (await session.view()).notes:
                        await asyncio.sleep(0.1)
            assert session.tab.page.url == "http://a.test/"
        finally:
            await session.close()

    chromium.run(run())
    for folder in (Path.cwd(), Path.home(), Path.home() / "Downloads", Path("/tmp")):
        assert not list(folder.glob("evil-download*"))


def test_a_dialog_is_dismissed_and_reported(chromium: RunningBrowser) -> None:
    page = """<button onclick="document.title = confirm('Really?')">Ask</button>"""

    async def run() -> None:
        session = await open_page(chromium.browser, {"/": page})
        try:
            await perform(session, parse_action('click("1")'))
            await session.wait_until_idle()
            view = await session.view()
            assert (view.title, view.notes) == ("false", ("A dialog was dismissed: 'Really?'",))
        finally:
            await session.close()

    chromium.run(run())


def grows_to(characters: int, pieces: int) -> str:
    return f"<script>document.write(('<p>' + 'x'.repeat({characters}) + '</p>').repeat({pieces}))</script>"


def test_a_page_that_is_too_large_is_not_shown(chromium: RunningBrowser) -> None:
    async def run() -> None:
        site = {"/": grows_to(1, MAX_ELEMENTS + 1), "/fine": FINE}
        session = await chromium.browser.new_session({"a.test": pages(site)})
        try:
            for action in ('goto("http://a.test/")',):
                await perform(session, parse_action(action))
                await session.wait_until_idle()
            view = await session.view()
            assert view.nodes == ()
            assert "too large to be shown" in view.notes[0]
            assert (await visit(session, "/fine")).title == "Fine"
        finally:
            await session.close()

    chromium.run(run())


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        grows_to(1000, 50_000),
        "<script>const a = []; for (;;) a.push(new Array(100000).fill(Math.random()))</script>",
        "<script>setInterval(() => { for (let i = 0; i < 1e4; i++) document.body.append('x'.repeat(1e4)) })</script>",
    ],
    ids=["50 MB of DOM", "memory", "a page that grows"],
)
def test_a_page_that_uses_too_many_resources_ends_by_its_deadline(chromium: RunningBrowser, page: str) -> None:
    async def run() -> None:
        session = await chromium.browser.new_session({"a.test": pages({"/": page})})
        async with asyncio.timeout(LIMIT_SECONDS):
            with contextlib.suppress(Exception):  # a timeout, or the page's process died
                await asyncio.wait_for(visit(session, "/"), 10)
            await session.close()
        assert await can_load_a_page(chromium.browser)

    chromium.run(run())


def test_no_process_is_left_when_the_browser_is_closed() -> None:
    pytest.importorskip("playwright")
    before = {process.pid for process in psutil.Process().children(recursive=True)}

    async def run() -> None:
        browser = Browser()
        try:
            browser.check()
        except Exception as error:
            pytest.skip(str(error))
        await browser.open()
        assert await browser.healthy()
        hanging = await browser.new_session({"a.test": pages({"/": HANGING["busy loop"]})})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(visit(hanging, "/", "noop(500)"), 1)
        await browser.close()
        assert not await browser.healthy()
        await hanging.close()

    asyncio.run(run())
    remaining = {process.pid for process in psutil.Process().children(recursive=True)} - before
    assert not [pid for pid in remaining if psutil.pid_exists(pid) and "chrom" in psutil.Process(pid).name()]


def test_a_folder_serves_its_files_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.html").write_text("a")
    (tmp_path / "secret.html").write_text("secret")
    (tmp_path / "site" / "link.html").symlink_to(tmp_path / "secret.html")
    handle = folder_handler(tmp_path / "site")

    def status(path: str, method: str = "GET") -> int:
        return asyncio.run(handle(HttpRequest(method, "a.test", path))).status

    assert status("/a.html") == 200
    for path in ("/../secret.html", "/%2e%2e/secret.html", "//etc/passwd", "/link.html", "/none.html", "/"):
        assert status(path) == 404
    assert status("/a.html", "POST") == 405
