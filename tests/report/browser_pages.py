"""Pages in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import json
import time
from typing import Any


def wait_until(page: Any, expression: str, seconds: float = 60.0) -> None:
    """Wait until something is true. Playwright's own waiting evaluates strings, which the page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"never true: {expression}"
        time.sleep(0.05)


def wait_for_count(page: Any, text: str) -> None:
    """Wait until the list of episodes has this count: a search in all texts is answered a moment later."""
    wait_until(page, f"(document.querySelector('.count') || {{}}).textContent === {json.dumps(text)}")


class PageRecorder:
    """A browser page whose script errors, dialogs and requests are recorded; an error fails the test."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.set_default_timeout(60_000)  # a busy machine is slow; nothing here waits for long when all is well
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("dialog", lambda dialog: self.errors.append("dialog"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def __enter__(self) -> PageRecorder:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.context.close()
        if kind is None:
            assert self.errors == []
