"""One browser for all episodes of a run: Debian's Chromium, or its headless shell, driven by Playwright.

Each episode has a context of its own (cookies, storage, cache, renderer processes) whose only network is the episode's
`SiteGateway`. Chromium's own name resolution is off: a host is reached through a gateway or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from practicum.environments.web.gateway import Handler, SiteGateway
from practicum.environments.web.session import BrowserSession
from practicum.errors import UserError
from practicum.resources import Resource
from practicum.utils.concurrency import queued

EXECUTABLE = next(filter(shutil.which, ("/usr/bin/chromium-headless-shell", "/usr/bin/chromium")), "/usr/bin/chromium")
"""Chromium's headless shell where it is installed: the same engine without the interface around it, which takes two
thirds of the processor time of an episode."""
VIEWPORT = (1280, 720)
MAX_SESSIONS = 8
"""Episodes with a page at once: about 65 MB each, and two processor cores do not serve more any faster."""
CLOSE_SECONDS = 10.0
ARGUMENTS = (
    "--no-sandbox",  # Chromium's own sandbox does not start as root in a container
    "--disable-gpu",
    "--disable-quic",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-domain-reliability",
    "--disable-file-system",
    "--js-flags=--max-old-space-size=512",
)
"""What we add to Playwright's own arguments. `--disable-features` may stand only once, so Playwright's own is left."""
WITHOUT_ARGUMENTS = ("--disable-popup-blocking",)
"""Arguments of Playwright that are not used: a page may not open windows without a click."""


class Browser(Resource):
    """The browser process, opened once per run."""

    def __init__(self, executable: str = EXECUTABLE, max_sessions: int = MAX_SESSIONS) -> None:
        """At most `max_sessions` episodes have a page at once; others wait for one."""
        self.executable, self.max_sessions = executable, max_sessions
        self.num_sessions = 0
        """Sessions that are open."""
        self._slots = asyncio.Semaphore(max_sessions)
        self._playwright: Any = None
        self._browser: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Browser) and other._settings == self._settings

    def __hash__(self) -> int:
        return hash(self._settings)

    @property
    def _settings(self) -> tuple[str, int]:
        return self.executable, self.max_sessions

    def check(self) -> None:
        """Raise UserError where Playwright or Chromium is not installed."""
        if importlib.util.find_spec("playwright") is None:
            raise UserError("The web environments need Playwright: pip install 'practicum[web]'.")
        if shutil.which(self.executable) is None:
            raise UserError(f"The web environments need {self.executable}: apt-get install chromium.")

    async def open(self) -> None:
        """Start the browser."""
        self.check()
        self._slots, self.num_sessions = asyncio.Semaphore(self.max_sessions), 0
        from playwright.async_api import async_playwright  # only users of the web environments have it

        self._playwright = await async_playwright().start()
        self._browser = await self._playwright.chromium.launch(
            executable_path=self.executable,
            headless=True,
            args=list(ARGUMENTS),
            ignore_default_args=list(WITHOUT_ARGUMENTS),
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
        )

    async def healthy(self) -> bool:
        """Whether the browser process runs."""
        return self._browser is not None and bool(self._browser.is_connected())

    async def close(self) -> None:
        """End the browser process and Playwright's driver."""
        browser, driver, self._browser, self._playwright = self._browser, self._playwright, None, None
        if browser is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(browser.close(), CLOSE_SECONDS)
        if driver is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(driver.stop(), CLOSE_SECONDS)

    async def new_session(
        self, handlers: Mapping[str, Handler], viewport: tuple[int, int] = VIEWPORT, remote_hosts: Sequence[str] = ()
    ) -> BrowserSession:
        """Return a session with one empty tab that can reach the hosts of `handlers`, the remote hosts by https, and
        nothing else.

        A wait for another episode to end does not count against the deadline in force.
        """
        slots = self._slots
        with queued():
            await slots.acquire()
        gateway, context = SiteGateway(handlers, {host: (host, 443) for host in remote_hosts}), None
        try:
            await gateway.open()
            context = await self._new_context(gateway, viewport)
            blocks_windows = "headless" not in Path(self.executable).name
            session = BrowserSession(context, gateway, lambda: self._session_closed(slots), blocks_windows)
            await session.open()
        except BaseException:
            slots.release()
            await gateway.close()
            if context is not None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(context.close(), CLOSE_SECONDS)
            raise
        self.num_sessions += 1
        return session

    async def _new_context(self, gateway: SiteGateway, viewport: tuple[int, int]) -> Any:
        return await self._browser.new_context(
            viewport={"width": viewport[0], "height": viewport[1]},
            # "<-loopback>" takes away Chromium's exception for loopback addresses: they are refused as well.
            proxy={"server": gateway.url, "bypass": "<-loopback>"},
            accept_downloads=False,
            service_workers="block",
            permissions=[],
            locale="en-US",
            timezone_id="UTC",
            color_scheme="light",
            reduced_motion="reduce",
        )

    def _session_closed(self, slots: asyncio.Semaphore) -> None:
        slots.release()
        if slots is self._slots:  # the browser has not been opened again since
            self.num_sessions -= 1
