"""The environment `web` on the sites' HTML without a browser: the same classes, only the session is another one."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from practicum.environment import ToolCall
from practicum.environments.web.environment import HOST, WebEnvironment
from practicum.environments.web.experts import PageAction
from practicum.environments.web.observation import Node, PageView
from practicum.environments.web.session import ActionFailed
from practicum.resources import Resource
from tests.environments.web.html_client import HtmlClient


class HtmlSession:
    """What the environment uses of a `BrowserSession`."""

    def __init__(self, client: HtmlClient) -> None:
        self.client = client
        self.tab = SimpleNamespace(nodes={})
        self.history = [client.path]

    async def wait_until_idle(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def view(self, with_dom: bool = False) -> PageView:
        nodes = [Node("StaticText", text) for text in self.client.page.texts]
        is_dialog = 'role="dialog"' in self.client.body
        nodes += [Node("dialog")] if is_dialog else []
        for bid, control in enumerate(self.client.page.controls, 1):
            checked = ("checked=true",) if control.checked else ()
            nodes.append(Node(control.role, control.name, str(bid), int(is_dialog), control.value, checked))
        self.tab.nodes = {node.bid: node for node in nodes if node.bid}
        title = re.search("<title>(.*?)</title>", self.client.body)
        return PageView(f"http://{HOST}{self.client.path}", title[1] if title else "", tuple(nodes))

    def perform(self, call: ToolCall) -> None:
        if call.name == "goto":
            self.client.goto(call.arguments["url"].removeprefix(f"http://{HOST}"))
        elif call.name == "go_back":
            self.client.goto(self.history[-2] if len(self.history) > 1 else self.history[-1])
        elif call.name in ("click", "fill", "select_option"):
            node = self.tab.nodes.get(call.arguments["bid"])
            if node is None:
                raise ActionFailed(f"There is no element [{call.arguments['bid']}] on this page.")
            text = call.arguments.get("value", call.arguments.get("options", ""))
            self.client.act(PageAction(call.name, node.role, node.name, text))
        if self.client.path != self.history[-1]:
            self.history.append(self.client.path)


class HtmlBrowser(Resource):
    async def new_session(self, *arguments: Any) -> HtmlSession:
        raise NotImplementedError("set by the environment")


class HtmlWebEnvironment(WebEnvironment):
    """`web` without a browser."""

    def make_resources(self) -> dict[str, Resource]:
        return {"browser": HtmlBrowser(), **self.cache_resource()}

    async def reset(self, task: Any, seed: int) -> Any:
        async def new_session(*_: Any) -> HtmlSession:
            return HtmlSession(HtmlClient.of_session(self.site_task.session))

        self.resources["browser"].new_session = new_session
        return await super().reset(task, seed)

    async def perform_on_page(self, call: ToolCall) -> None:
        assert isinstance(self._session, HtmlSession)
        self._session.perform(call)
