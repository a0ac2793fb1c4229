"""`benchmarks/web_without_browser.py` shows what Chromium shows."""

from __future__ import annotations

from benchmarks.web_without_browser import WebWithoutBrowser

from practicum.environments.web.environment import WebEnvironment
from practicum.environments.web.tasks import make_tasks, templates
from tests.environments.web.conftest import RunningBrowser
from tests.environments.web.test_environment import play


def test_the_expert_sees_the_same_in_chromium(chromium: RunningBrowser) -> None:
    tasks = [make_tasks([templates()[name]], 1, 3)[0] for name in ("shop/buy", "mail/search-star", "calendar/create")]
    for task in tasks:
        episodes = []
        for kind in (WebEnvironment, WebWithoutBrowser):
            env = kind(observe="brief", prompt="page")
            env.resources = {"browser": chromium.browser}  # type: ignore[assignment]
            seen, last = chromium.run(play(env, task))
            episodes.append(([one.messages for one in seen], last.reward, last.progress))
            assert last.success
        assert episodes[0] == episodes[1]
