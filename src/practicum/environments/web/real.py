"""`real`: the REAL benchmark, replicas of well-known web sites, on its remote sites.

Tasks and evaluation scripts come with the package `agisdk`. A page reaches its own site and nothing else. Where a site
cannot be reached, the run stops before its first episode and says so.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from practicum.environment import SPLITS, ToolCall
from practicum.environments.web.base import DEFAULT_ACTIONS, Start, WebVerdict
from practicum.environments.web.browser import EXECUTABLE, MAX_SESSIONS
from practicum.environments.web.gateway import forward_handler
from practicum.environments.web.hierarchy import Hierarchy, HierarchyEnvironment
from practicum.environments.web.observation import TOP_K
from practicum.environments.web.page_actions import perform
from practicum.environments.web.real_tasks import package_folder, real_tasks
from practicum.environments.web.session import BrowserSession
from practicum.errors import UserError, did_you_mean
from practicum.resources import Resource
from practicum.task import Task

CONNECT_SECONDS = 10.0
SCRIPT_SECONDS = 30.0
STATE_SECONDS = 15.0
POLL_SECONDS = 0.2
STATE = "document.querySelector('pre')?.innerText ?? null"


class RemoteSite(Resource):
    """A site on the Internet: nothing is opened, it must only answer."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteSite) and (other.host, other.port) == (self.host, self.port)

    def __hash__(self) -> int:
        return hash((self.host, self.port))

    async def open(self) -> None:
        """Raise UserError if the site does not accept a connection."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(self.host, self.port)
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or f"no answer within {CONNECT_SECONDS:g} s"
            raise UserError(
                f"REAL's site {self.host} cannot be reached from this machine ({reason}). Its sites are on the "
                "Internet; --env web plays sites that are built in."
            ) from None
        writer.close()


class RealEnvironment(HierarchyEnvironment):
    """REAL's tasks on replicas of web sites, judged by its own scripts."""

    name = "real"

    def __init__(
        self, format: str = "web", observe: str = "axtree", prompt: str = "short", fresh: bool = True,
        screenshots: bool = False, actions: Sequence[str] = DEFAULT_ACTIONS, top_k: int = TOP_K,
        max_chars: int = 20_000, pages: int = MAX_SESSIONS, chromium: str = EXECUTABLE, task_version: str = "v2",
        addresses: Mapping[str, str] | None = None, manager: str = "none", manager_calls: str = "warm",
        cache: bool | str = False, macros: bool = False, recovery: bool = False,
    ) -> None:  # fmt: skip
        """`task_version` chooses the tasks. `addresses` are those of sites that run elsewhere, such as
        {gomail: "http://127.0.0.1:3000"}; results on these are not REAL's. The others are those of
        HALO's hierarchy; there is no scripted manager."""
        super().__init__(format, observe, prompt, fresh, screenshots, actions, top_k, max_chars, pages, chromium)
        self.set_hierarchy(Hierarchy(manager, manager_calls, cache, macros, recovery))
        self.task_version, self.addresses = task_version, dict(addresses or {})
        for site, address in self.addresses.items():
            if urlsplit(str(address)).scheme not in ("http", "https"):
                raise UserError(f"The address of {site} begins with http:// or https://, not {str(address)[:40]!r}.")

    def make_resources(self) -> Mapping[str, Resource]:
        sites = {self._address(task): None for task in real_tasks(self.task_version)}
        return {**super().make_resources(), **{address: RemoteSite(address) for address in sites}}

    def resource_names(self, task: Task) -> Sequence[str]:
        address = self._address(task)
        return ("browser", *([address] if address in self.resources else []))

    def _address(self, task: Task) -> str:
        return str(self.addresses.get(str(task.fields["site"]), task.fields["url"])).rstrip("/")

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Return the first tasks of a split, in the order of their names; there are no more than REAL's."""
        if split not in SPLITS:
            raise UserError(f"real has no split '{split}'.{did_you_mean(split, SPLITS)}")
        return [task for task in real_tasks(self.task_version) if task.split == split][:count]

    async def start(self, task: Task, seed: int) -> Start:
        self.task = task
        address, site = self._address(task), str(task.fields["site"])
        parts = urlsplit(address)
        first = f"/config?run_id=0&task_id={task.id.partition('.')[2]}&latency=0"
        goal = str(task.fields["question"])
        if parts.scheme == "https":
            self.address = address
            return Start({}, address + first, goal, site, remote_hosts=(parts.netloc.lower(),))
        host = f"{site}.test"
        self.address = f"http://{host}"
        return Start({host: forward_handler(address)}, self.address + first, goal, site)

    async def prepare_page(self, session: BrowserSession) -> str | None:
        """Go from the page that sets the task up to the site's first page."""
        await perform(session, ToolCall("goto", {"url": f"{self.address}/"}))
        await session.wait_until_idle()
        return None

    async def judge(self, message: str | None) -> WebVerdict:
        if message is None:
            return WebVerdict(False)
        state = await self._state()
        results = [await self._run_script(str(evaluator["script"]), state) for evaluator in self.task.fields["evals"]]
        return WebVerdict(all(passed for passed, _ in results), info={"evals": [output for _, output in results]})

    async def _state(self) -> Any:
        """What the site says about its state at /finish."""
        await perform(self.session, ToolCall("goto", {"url": f"{self.address}/finish"}))
        loop = asyncio.get_running_loop()
        until = loop.time() + STATE_SECONDS
        while loop.time() < until:
            await self.session.wait_until_idle()
            text = await self.session.tab.evaluate(STATE)
            if text:
                try:
                    return json.loads(text)
                except ValueError:
                    break
            await asyncio.sleep(POLL_SECONDS)
        raise RuntimeError(f"{self.address}/finish does not show the state of the site")

    async def _run_script(self, name: str, state: Any) -> tuple[bool, str]:
        """Run an evaluation script of the package on a state; it says SUCCESS where the task is solved."""
        path = package_folder(self.task_version) / "eval_scripts" / Path(name).name
        if not path.is_file():
            raise UserError(f"The installed agisdk has no evaluation script '{name}'.")
        with tempfile.TemporaryDirectory(prefix="practicum-real-") as folder:
            file = Path(folder) / "state.json"
            file.write_text(json.dumps(state), encoding="utf-8")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", str(path), str(file), cwd=folder,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                async with asyncio.timeout(SCRIPT_SECONDS):
                    output, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        text = output.decode("utf-8", "replace").strip()
        return "SUCCESS" in text.upper(), text[:500]
