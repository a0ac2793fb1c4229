"""The environment `web` without a browser: for tuning on machines that have none, at a fraction of the time.

    python benchmarks/web_training.py --env benchmarks/web_without_browser.py:WebWithoutBrowser --out runs/tuning

Our sites have no scripts, so an HTML client can click, fill and submit as a browser does. Tasks, evaluator and prompts
(`observe=brief`, `prompt=page`) are those of `web`; the expert's prompts are the same bytes as in Chromium
(`tests/environments/web/test_without_browser.py`). Figures for the record are made in Chromium.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.environments.web.html_client import Control, HtmlClient, PageParser

from practicum.chat.formats.web import MESSAGE
from practicum.environment import ToolCall
from practicum.environments.web.base import Start
from practicum.environments.web.environment import HOST, WebEnvironment
from practicum.environments.web.observation import Node, PageView, actionable_elements, state_key
from practicum.environments.web.session import ActionFailed
from practicum.resources import Resource

TICKED = ("checkbox", "radio")
VALUED = ("combobox", "textbox", "searchbox")


class OrderedParser(PageParser):
    """Also keeps controls and alerts in the order of the page, and its title."""

    def __init__(self, html: str) -> None:
        self.items: list[Control | str] = []
        self.title = ""
        self._alert_depth: int | None = None
        super().__init__(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        num_controls = len(self.controls)
        super().handle_starttag(tag, attrs)
        self.items += self.controls[num_controls:]
        if dict(attrs).get("role") == "alert":
            self._alert_depth = len(self._open)

    def handle_endtag(self, tag: str) -> None:
        if self._alert_depth == len(self._open):
            self._alert_depth = None
        super().handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        if self._alert_depth is not None:
            self.items.append(data)
        if self._open and self._open[-1] == "title":
            self.title = data
        super().handle_data(data)


class Client(HtmlClient):
    """An HTML client with a history and with ids of elements."""

    def __init__(self, fetch: Any, start: str) -> None:
        self.path = ""
        self.earlier: list[str] = []
        self.later: list[str] = []
        self.by_id: dict[str, tuple[Control, str | None]] = {}
        super().__init__(fetch, start)

    def goto(self, url: str, method: str = "GET", form: dict[str, str] | None = None) -> None:
        if self.path:
            self.earlier.append(self.path)
            self.later = []
        self._load(url, method, form)

    def _load(self, url: str, method: str = "GET", form: dict[str, str] | None = None) -> None:
        super().goto(url, method, form)
        self.page: OrderedParser = OrderedParser(self.body)

    def go(self, back: bool) -> None:
        source, target = (self.earlier, self.later) if back else (self.later, self.earlier)
        if source:
            target.append(self.path)
            self._load(source.pop())

    def nodes(self) -> tuple[Node, ...]:
        nodes: list[Node] = []
        self.by_id = {}
        for item in self.page.items:
            if isinstance(item, str):
                nodes += [Node("alert"), Node("StaticText", item, depth=1)]
                continue
            properties = (f"checked={str(item.checked).lower()}",) if item.role in TICKED else ()
            bid = self._assign(item, None)
            nodes.append(Node(item.role, item.name, bid, 0, item.value if item.role in VALUED else "", properties))
            nodes += [Node("option", option, self._assign(item, option), 1) for option in item.options]
        return tuple(nodes)

    def _assign(self, control: Control, option: str | None) -> str:
        bid = str(len(self.by_id) + 1)
        self.by_id[bid] = (control, option)
        return bid


class WebWithoutBrowser(WebEnvironment):
    """`web` through an HTML client."""

    def make_resources(self) -> Mapping[str, Resource]:
        return self.cache_resource()

    async def _open_first_page(self, start: Start) -> None:
        self.client = Client.of_session(self.site_task.session)
        self._session: Any = SimpleNamespace(tab=SimpleNamespace(nodes={}))
        await self._read_page()

    async def close(self) -> None:
        self._session = None

    async def wait_for_page(self) -> None:
        return None

    async def _read_page(self) -> None:
        nodes = self.client.nodes()
        self.view = PageView(f"http://{HOST}{self.client.path}", self.client.page.title, nodes)
        self._session.tab.nodes = {node.bid: node for node in nodes if node.bid}
        self.key = state_key(
            self.view.url, nodes, title=self.view.title, has_error=bool(self.last_error), site_id=self.site_id
        )
        self.elements = actionable_elements(nodes, self.top_k)

    async def _perform(self, call: ToolCall) -> None:
        if call.name not in self.actions and call.name != MESSAGE:
            raise ActionFailed(f"The action {call.name} is not part of this task.")
        if "bid" in call.arguments:
            self._use(call)
        elif call.name == "goto":
            url = str(call.arguments["url"])
            if not url.startswith(f"http://{HOST}/"):
                raise ActionFailed(f"The address {url[:100]!r} is not part of this task.")
            self.client.goto(url.removeprefix(f"http://{HOST}"))
        elif call.name in ("go_back", "go_forward"):
            self.client.go(back=call.name == "go_back")

    def _use(self, call: ToolCall) -> None:
        """Carry out an action on an element."""
        bid = str(call.arguments["bid"])
        if bid not in self.client.by_id:
            raise ActionFailed(f"There is no element [{bid}] on this page.")
        control, option = self.client.by_id[bid]
        if call.name == "click" and option is None:
            self.client.click(control)
        elif call.name == "click":
            control.value = option or ""
        elif call.name == "fill":
            if control.role not in ("textbox", "searchbox"):
                raise ActionFailed(f"The element [{bid}] is not a text field.")
            control.value = str(call.arguments["value"])
        elif call.name == "select_option":
            if control.role != "combobox":
                raise ActionFailed(f"The element [{bid}] is not a list to select from.")
            options = call.arguments["options"]
            name = options if isinstance(options, str) else "".join(options[:1])
            if name not in control.options:
                raise ActionFailed(f"The element [{bid}] has no option '{name[:50]}'.")
            control.value = name
