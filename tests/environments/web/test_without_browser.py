"""`benchmarks/web_without_browser.py` shows what Chromium shows; legal actions and the expert's thoughts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks.web_without_browser import WebWithoutBrowser

from practicum.collector import CollectSettings, collect
from practicum.data.store import read_episode
from practicum.environments.web.environment import WebEnvironment
from practicum.environments.web.tasks import make_tasks, templates
from practicum.registry import make_format
from tests.environments.web.conftest import RunningBrowser
from tests.environments.web.test_environment import run_expert


def test_the_expert_sees_the_same_in_chromium(chromium: RunningBrowser) -> None:
    tasks = [make_tasks([templates()[name]], 1, 3)[0] for name in ("shop/buy", "mail/search-star", "calendar/create")]
    for task in tasks:
        episodes = []
        for kind in (WebEnvironment, WebWithoutBrowser):
            env = kind(observe="brief", prompt="page")
            env.resources = {"browser": chromium.browser}  # type: ignore[assignment]
            observations, last = chromium.run(run_expert(env, task))
            episodes.append(
                (
                    [(observation.messages, observation.legal) for observation in observations],
                    last.reward,
                    last.progress,
                )
            )
            assert last.success
        assert episodes[0] == episodes[1]


@pytest.mark.parametrize("thoughts", [False, True])
def test_every_reply_of_the_expert_is_legal_where_nothing_is_typed(thoughts: bool) -> None:
    env = WebWithoutBrowser(observe="brief", prompt="page", text=False, element_thoughts=thoughts)
    num_thoughts = 0
    for task in env.tasks("train", 30):
        observation = asyncio.run(env.reset(task, 0))
        policy, is_over = env.expert(task), False
        while not is_over:
            action = policy(observation)
            assert make_format("web").write(action, has_tools=True) in (observation.legal or ())
            if action.thought:
                num_thoughts += 1
                assert action.thought in observation.messages[-1].content.splitlines()
            step = asyncio.run(env.step(action))
            observation, is_over = step.observation, step.terminated
        assert step.success
    assert bool(num_thoughts) is thoughts


def test_replies_of_an_untrained_model_are_legal_where_they_must_be(tmp_path: Path) -> None:
    environment = f"{Path(__file__).parents[3]}/benchmarks/web_without_browser.py:WebWithoutBrowser"
    for format in ("web", "web_json"):
        options = {"observe": "brief", "prompt": "page", "text": False, "element_thoughts": True}
        settings = CollectSettings(
            environment=environment, environment_options=options, policy="tiny", num_tasks=3, max_turns=3,
            max_tokens=150, format=format, response_format="legal", out=tmp_path / format,
        )  # fmt: skip
        episodes = [read_episode(path) for path in collect(settings, progress=False).rows]
        turns = [turn for episode in episodes for turn in episode.turns]
        assert len(turns) > len(episodes) == 3
        assert all(turn.action.error is None and turn.response_format is not None for turn in turns)


def test_episodes_that_begin_after_random_links_begin_elsewhere_and_can_be_solved() -> None:
    env = WebWithoutBrowser(observe="brief", prompt="page", text=False, wander=2)
    titles = set()
    for seed, task in enumerate(env.tasks("train", 12)):
        first, last = asyncio.run(run_expert(env, task, seed))
        titles.add(first[0].messages[-1].content.partition("\n# ")[2].partition("\n")[0])
        assert first[0] == asyncio.run(env.reset(task, seed)), "by the episode's seed"
        assert last.success
    assert len(titles) > 5
