"""One Chromium for all tests of a test process."""

from __future__ import annotations

import asyncio
import html
import shutil
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import pytest

from practicum.environments.web.browser import EXECUTABLE, Browser
from practicum.environments.web.gateway import Handler, HttpRequest, HttpResponse
from practicum.environments.web.session import BrowserSession

T = TypeVar("T")


class RunningBrowser:
    """An open browser and the event loop that it belongs to."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.browser = Browser()
        self.runner.run(self.browser.open())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def close(self) -> None:
        self.runner.run(self.browser.close())
        self.runner.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[RunningBrowser]:
    pytest.importorskip("playwright")
    if shutil.which(EXECUTABLE) is None:
        pytest.skip(f"needs {EXECUTABLE} (make setup installs it)")
    running = RunningBrowser()
    yield running
    running.close()


def pages(responses: Mapping[str, str | HttpResponse]) -> Handler:
    """A site of fixed pages; a form is answered with what it sent."""

    async def handle(request: HttpRequest) -> HttpResponse:
        if request.method == "POST":
            return HttpResponse(body=f"<title>Sent</title><p>{html.escape(request.body.decode())}</p>".encode())
        page = responses.get(request.path, HttpResponse(404, b"<title>Not found</title>"))
        return HttpResponse(body=page.encode()) if isinstance(page, str) else page

    return handle


async def open_page(browser: Browser, responses: Mapping[str, str | HttpResponse], path: str = "/") -> BrowserSession:
    """A session of a site of fixed pages, at one of them."""
    from practicum.environment import ToolCall
    from practicum.environments.web.page_actions import perform

    session = await browser.new_session({"a.test": pages(responses)})
    await perform(session, ToolCall("goto", {"url": f"http://a.test{path}"}))
    await session.wait_until_idle()
    await session.view()
    return session
