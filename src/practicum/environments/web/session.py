"""The browser of one episode: its tabs, what they show, and when they are idle."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from practicum.environments.web.axtree import dom_elements, page_nodes
from practicum.environments.web.gateway import SiteGateway
from practicum.environments.web.observation import Node, PageView, one_line

MAX_TABS = 4
MAX_NOTES = 5
MAX_ELEMENTS = 20_000
"""Elements of a page that is still read."""
MAX_PAGE_CHARS = 2_000_000
MAX_IDLE_WAIT_SECONDS = 3.0
"""Seconds after which a page is shown although it still loads."""
WINDOW_SECONDS = 1.0
"""Seconds that a new window is waited for."""
CLOSE_SECONDS = 5.0
RETRY_SECONDS = 0.02
FIRST_TIME_MS = 1_767_258_000_000
"""The time at which every episode begins for its pages: 2026-01-01 09:00 UTC."""
CLOCK = """(() => {
  const Real = Date, shift = %d - %d;
  const Shifted = function (...given) {
    if (!new.target) return new Shifted().toString();
    return Reflect.construct(Real, given.length ? given : [Real.now() + shift], new.target);
  };
  Shifted.prototype = Real.prototype;
  Shifted.prototype.constructor = Shifted;
  Shifted.now = () => Real.now() + shift;
  Shifted.parse = Real.parse;
  Shifted.UTC = Real.UTC;
  window.Date = Shifted;
})()"""
"""Moves the page's clock; it goes on at its usual pace."""
ERROR_PAGE = "chrome-error:"
"""How the address of Chromium's own page begins that says why a page could not be loaded."""
TWO_FRAMES = """new Promise(resolve => {
  const timer = setTimeout(resolve, 200);
  requestAnimationFrame(() => requestAnimationFrame(() => { clearTimeout(timer); setTimeout(resolve, 0); }));
})"""
SIZE = """[document.getElementsByTagName('*').length, document.documentElement?.textContent.length ?? 0,
  document.readyState, document.title]"""


class ActionFailed(Exception):
    """An action could not be carried out; the message is one sentence for the agent."""


class PageCrashed(Exception):
    """A page's process died; the episode cannot go on."""


class Tab:
    """One tab: its page, its debugging session, and the ids of its elements, which count from 1 in each document."""

    def __init__(self, page: Any, on_window: Callable[[bool], None]) -> None:
        """`on_window` is called when the page begins to open a window, with whether a click of the agent led to it."""
        self.page, self._on_window = page, on_window
        self.cdp: Any = None
        self.crashed = False
        self.last_url = "about:blank"
        """The last address that is part of the task."""
        self.nodes: dict[str, Node] = {}
        """What the agent was shown last, by id."""
        self._backend_of: dict[str, int] = {}
        self._bid_of: dict[int, str] = {}
        self._loading: set[str] = set()
        self._loaded = asyncio.Event()

    async def open(self) -> None:
        """Attach to the page."""
        if self.cdp is not None:
            return
        cdp = await self.page.context.new_cdp_session(self.page)
        cdp.on("Page.frameStartedLoading", lambda event: self._on_loading(event["frameId"], True))
        cdp.on("Page.frameRequestedNavigation", lambda event: self._on_loading(event["frameId"], True))
        cdp.on("Page.frameStoppedLoading", lambda event: self._on_loading(event["frameId"], False))
        cdp.on("Page.frameDetached", lambda event: self._on_loading(event["frameId"], False))
        cdp.on("Page.frameNavigated", self._on_navigated)
        cdp.on("Page.windowOpen", lambda event: self._on_window(bool(event["userGesture"])))
        self.page.on("crash", lambda _: setattr(self, "crashed", True))
        await cdp.send("Page.enable")
        self.cdp = cdp

    def _on_loading(self, frame: str, begins: bool) -> None:
        (self._loading.add if begins else self._loading.discard)(frame)
        (self._loaded.clear if self._loading else self._loaded.set)()

    def _on_navigated(self, event: dict[str, Any]) -> None:
        if "parentId" not in event["frame"]:  # a new document: its elements are others
            self._bid_of.clear()
            self._backend_of.clear()
            self.nodes = {}

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    async def loaded(self) -> None:
        """Wait until nothing loads."""
        await self.open()
        if self._loading:
            await self._loaded.wait()

    def assign_id(self, backend: int) -> str:
        """Return the id of an element; one that is new gets the next number."""
        if backend not in self._bid_of:
            bid = str(len(self._bid_of) + 1)
            self._bid_of[backend], self._backend_of[bid] = bid, backend
        return self._bid_of[backend]

    async def send(self, method: str, **parameters: Any) -> Any:
        """Send a command of Chromium's debugging protocol."""
        if self.crashed:
            raise PageCrashed("the page's process died")
        return await self.cdp.send(method, parameters)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page, a promise awaited; None if it raises."""
        result = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return None if "exceptionDetails" in result else result["result"].get("value")

    async def call_on(self, bid: str, function: str, *arguments: Any) -> Any:
        """Call a JavaScript function with an element as `this`; ActionFailed if there is no such element."""
        from playwright.async_api import Error

        backend = self._backend_of.get(bid)
        if backend is None or bid not in self.nodes:
            raise ActionFailed(f"There is no element [{bid}] on this page.")
        try:
            node = await self.send("DOM.resolveNode", backendNodeId=backend)
        except Error as error:
            raise ActionFailed(f"The element [{bid}] is not on the page any more.") from error
        result = await self.send(
            "Runtime.callFunctionOn",
            functionDeclaration=function,
            objectId=node["object"]["objectId"],
            arguments=[{"value": value} for value in arguments],
            returnByValue=True,
            awaitPromise=True,
        )
        if "exceptionDetails" in result:
            raise ActionFailed(f"The page raised an error at the element [{bid}].")
        return result["result"].get("value")


class BrowserSession:
    """The tabs of one episode. Everything in here may hang with a hostile page: call it under a timeout."""

    def __init__(
        self, context: Any, gateway: SiteGateway, on_close: Callable[[], None], blocks_windows: bool = True
    ) -> None:
        """`blocks_windows` says whether the browser itself blocks windows that a page opens without a click; Chromium
        does, and its headless shell does not: there they are closed when they open."""
        self.context, self.gateway, self._blocks_windows = context, gateway, blocks_windows
        self.tabs: list[Tab] = []
        self.active_index = 0
        self.notes: list[str] = []
        self._on_close: Callable[[], None] | None = on_close
        self._window_opened = asyncio.Event()
        self._window_opened.set()
        self._num_windows = {True: 0, False: 0}
        """Windows that will open: after a click of the agent, and by themselves."""
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        await self.context.add_init_script(CLOCK % (FIRST_TIME_MS, time.time() * 1000))
        self.context.on("page", self._on_page)
        self.context.on("dialog", self._on_dialog)
        await self.context.new_page()
        await self.tab.open()

    @property
    def tab(self) -> Tab:
        """The active tab."""
        return self.tabs[self.active_index]

    @property
    def origins(self) -> tuple[str, ...]:
        """Scheme and host of every address that is part of the task."""
        return (*(f"http://{host}" for host in self.gateway.handlers), *(f"https://{h}" for h in self.gateway.remote))

    def note(self, text: str) -> None:
        """Keep something for the next observation to say."""
        if len(self.notes) < MAX_NOTES and text not in self.notes:
            self.notes.append(text)

    def _on_window(self, by_agent: bool) -> None:
        self._window_opened.clear()
        self._num_windows[by_agent] += by_agent or not self._blocks_windows

    def _on_page(self, page: Any) -> None:
        self._window_opened.set()
        is_unrequested = self._num_windows[False] > 0 and not self._num_windows[True]
        self._num_windows[not is_unrequested] = max(0, self._num_windows[not is_unrequested] - 1)
        if is_unrequested or len(self.tabs) >= MAX_TABS:
            reason = "the page opened it by itself" if is_unrequested else f"there are {MAX_TABS} already"
            self.note(f"A window was closed at once: {reason}.")
            self._later(page.close())
            return
        tab = Tab(page, self._on_window)
        page.on("close", lambda _: self._on_closed(tab))
        page.on("download", lambda download: self.note("A download was refused."))
        self.tabs.append(tab)
        self.active_index = len(self.tabs) - 1

    def _on_closed(self, tab: Tab) -> None:
        if tab in self.tabs:
            index = self.tabs.index(tab)
            self.tabs.remove(tab)
            if self.active_index >= index and self.active_index > 0:
                self.active_index -= 1

    def _on_dialog(self, dialog: Any) -> None:
        self.note(f"A dialog was dismissed: {one_line(dialog.message)[:200]!r}")
        # A page that asks whether it may be left is left.
        self._later(dialog.accept() if dialog.type == "beforeunload" else dialog.dismiss())

    def _later(self, work: Any) -> None:
        async def quietly() -> None:
            with contextlib.suppress(Exception):
                await work

        task = asyncio.ensure_future(quietly())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def check_url(self, url: str) -> None:
        """Raise ActionFailed for an address that is not part of the task, such as a local file."""
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if f"{parts.scheme}://{parts.netloc.lower()}" not in self.origins:
            allowed = " or ".join(f"{origin}/" for origin in self.origins)
            raise ActionFailed(f"The address {url[:100]!r} is not part of this task; it must begin with {allowed}.")

    async def wait_until_idle(self) -> None:
        """Wait until the active page has painted, loads nothing and asks for nothing, at most MAX_IDLE_WAIT_SECONDS."""
        from playwright.async_api import Error

        loop = asyncio.get_running_loop()
        until = loop.time() + MAX_IDLE_WAIT_SECONDS
        while loop.time() < until:
            try:
                await self.tab.open()
                await self.tab.evaluate(TWO_FRAMES)
            except Error:  # the document was replaced meanwhile
                await asyncio.sleep(RETRY_SECONDS)
                continue
            waiting, seconds = self._pending(), until - loop.time()
            if waiting is None:
                return
            if not self._window_opened.is_set():
                seconds = min(seconds, WINDOW_SECONDS)  # one that is blocked never comes
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiting, seconds)
            self._window_opened.set()

    def _pending(self) -> Coroutine[Any, Any, Any] | None:
        """What the session still waits for; None if it is idle."""
        if not self._window_opened.is_set():
            return self._window_opened.wait()
        if self.tab.cdp is None or self.tab.is_loading:
            return self.tab.loaded()
        return self.gateway.idle() if self.gateway.num_in_flight else None

    async def view(self, with_dom: bool = False) -> PageView:
        """Return what the active tab shows. `with_dom` adds elements without a role that can be clicked, and boxes."""
        from playwright.async_api import Error

        while True:
            try:
                return await self._view(with_dom)
            except Error:
                if self.tab.page.is_closed() or self.tab.crashed:
                    raise
                await asyncio.sleep(RETRY_SECONDS)  # the document is being replaced

    async def _view(self, with_dom: bool) -> PageView:
        await self._leave_foreign_pages()
        tab = self.tab
        num_elements, num_chars, _, title = await tab.evaluate(SIZE) or (0, 0, "", "")
        nodes: tuple[Node, ...] = ()
        if tab.page.url.startswith(ERROR_PAGE):
            self.note("The page could not be loaded.")
            title = ""
        elif num_elements > MAX_ELEMENTS or num_chars > MAX_PAGE_CHARS:
            self.note(f"The page is too large to be shown: {num_elements} elements, {num_chars} characters.")
        else:
            ax_nodes = (await tab.send("Accessibility.getFullAXTree"))["nodes"]
            dom = await tab.send("DOMSnapshot.captureSnapshot", computedStyles=[]) if with_dom else {}
            frames = await self._frames(tab, ax_nodes)
            nodes = page_nodes(ax_nodes, tab.assign_id, dom_elements(dom), frames)
        if tab is not self.tab:  # a window has opened meanwhile
            return await self._view(with_dom)
        tab.nodes = {node.bid: node for node in nodes if node.bid}
        notes, self.notes = tuple(self.notes), []
        urls = tuple(open_tab.page.url for open_tab in self.tabs)
        return PageView(tab.page.url, str(title)[:200], nodes, urls, self.active_index, notes)

    async def _frames(self, tab: Tab, ax_nodes: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
        """The trees of the frames in a page, by the element that holds them; frames in frames are not read."""
        trees: dict[int, list[dict[str, Any]]] = {}
        for node in ax_nodes:
            if node.get("role", {}).get("value") == "Iframe" and "backendDOMNodeId" in node:
                backend = node["backendDOMNodeId"]
                described = await tab.send("DOM.describeNode", backendNodeId=backend)
                if "frameId" in described["node"]:
                    tree = await tab.send("Accessibility.getFullAXTree", frameId=described["node"]["frameId"])
                    trees[backend] = tree["nodes"]
        return trees

    async def _leave_foreign_pages(self) -> None:
        """Leave addresses that are not part of the task: a tab goes back to where it was, a new one is closed."""
        for tab in list(self.tabs):
            url = tab.page.url
            if url in ("", "about:blank") or url.startswith(("blob:http://", ERROR_PAGE)):
                continue
            try:
                self.check_url(url)
                tab.last_url = url
            except ActionFailed as error:
                self.note(str(error))
                if len(self.tabs) > 1 and tab.last_url == "about:blank":
                    await tab.page.close()
                else:
                    await tab.page.goto(tab.last_url)
        await self.tab.open()

    async def screenshot(self) -> str:
        """Return a PNG picture of the active tab as a data URI."""
        png = await self.tab.page.screenshot(type="png", animations="disabled", caret="hide")
        return "data:image/png;base64," + base64.b64encode(png).decode()

    async def close(self) -> None:
        """Close all tabs and the gateway. A page that hangs is left to the browser, which ends its process."""
        on_close, self._on_close = self._on_close, None
        if on_close is None:
            return
        try:
            await self.gateway.close()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.context.close(), CLOSE_SECONDS)
        finally:
            on_close()
