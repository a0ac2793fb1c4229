"""The environment `web` in a real Chromium: episodes of experts and of agents that err."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from practicum.chat.formats.web_actions import parse_action
from practicum.collector import CollectSettings, collect
from practicum.data.store import read_episode
from practicum.environment import Action, Observation, Step
from practicum.environments.web.base import WebObservation
from practicum.environments.web.browser import Browser
from practicum.environments.web.environment import WebEnvironment, resolve
from practicum.environments.web.experts import PageAction
from practicum.environments.web.observation import Node, StateKey
from practicum.environments.web.tasks import make_tasks, templates
from practicum.errors import UserError
from practicum.task import Task
from practicum.trajectory import Outcome
from tests.environments.web.conftest import RunningBrowser

MAX_STEPS = 25


def environment(browser: Browser, **options: Any) -> WebEnvironment:
    env = WebEnvironment(sites=["shop"], **options)
    env.resources = {"browser": browser}  # type: ignore[assignment]
    return env


def act(text: str) -> Action:
    return Action(calls=(parse_action(text),))


async def run_expert(env: WebEnvironment, task: Task, seed: int = 0) -> tuple[list[Observation], Step]:
    """The observations of an episode of the expert, and its last step."""
    policy = env.expert(task)
    observations = [await env.reset(task, seed)]
    for _ in range(MAX_STEPS):
        step = await env.step(policy(observations[-1]))
        observations.append(step.observation)
        if step.terminated:
            break
    await env.close()
    return observations, step


def test_the_expert_solves_a_task_with_the_elements_that_are_shown(chromium: RunningBrowser) -> None:
    for observe in ("axtree", "summary"):
        env = environment(chromium.browser, observe=observe, levels=[2])
        task = env.tasks("train", 1)[0]
        observations, last = chromium.run(run_expert(env, task))
        assert (last.terminated, last.success, last.reward, last.progress) == (True, True, 1.0, 1.0)
        assert len(observations) > 2
        section = "# Accessibility Tree" if observe == "axtree" else "# Actionable Elements (bid, role, name)"
        assert section in observations[0].messages[-1].content
        assert str(task.fields["question"]) in observations[0].messages[-1].content
        assert all(observation.fresh for observation in observations[1:]), "every prompt begins anew"
        assert all(observation.messages[0].role == "system" for observation in observations)
    assert chromium.browser.num_sessions == 0


def test_a_brief_prompt_lists_past_actions_and_puts_ids_after_names(chromium: RunningBrowser) -> None:
    env = environment(chromium.browser, observe="brief", prompt="page")
    task = make_tasks([templates()["shop/add-options"]], 1, 1)[0]
    observations, last = chromium.run(run_expert(env, task))
    assert last.success
    texts = [observation.messages[-1].content for observation in observations]
    assert all(len(observation.messages) == 1 for observation in observations)
    goal = str(task.fields["question"])
    assert texts[0].startswith(f"{goal}\n# Shop\nHome [1]\nCart [2]\n")
    assert "\nSearch =  [6]\nSearch [7]\n" in texts[0]
    assert "\n- click Books\n- click Green book $14\n# Green book\n" in texts[2]
    assert "\nCover = Choose [8]\nQuantity = 1 [12]\n" in texts[2]  # options are left out, their ids are not reused
    assert "\n- select_option Cover paper\n" in texts[3]
    assert "\n# Cart\n" in texts[-1]
    assert "\n* Green book is in the cart.\n" in texts[-1]


def test_the_same_task_and_seed_are_the_same_episode_in_two_fresh_browsers(chromium: RunningBrowser) -> None:
    async def texts(browser: Browser) -> list[str]:
        env = environment(browser, levels=[1], vary=["skin", "words", "popup", "order"])
        observations, _ = await run_expert(env, env.tasks("train", 2)[1])
        return [message.content for observation in observations for message in observation.messages]

    async def in_a_fresh_browser() -> list[str]:
        browser = Browser()
        await browser.open()
        try:
            return await texts(browser)
        finally:
            await browser.close()

    assert chromium.run(texts(chromium.browser)) == asyncio.run(in_a_fresh_browser())


def test_errors_are_observations_and_the_record_has_the_state(chromium: RunningBrowser) -> None:
    async def run() -> None:
        env = environment(chromium.browser, levels=[1])
        task = env.tasks("train", 1)[0]
        first = await env.reset(task, 0)
        assert isinstance(first, WebObservation)
        try:
            step = await env.step(act('click("999")'))
            error = "There is no element [999] on this page."
            assert f"# Last Action Error\n{error}" in step.observation.messages[-1].content
            assert (step.reward, step.terminated, step.components["error"]) == (0.0, False, 1.0)
            info = step.info
            assert info["error"] == error
            assert info["action"] == 'click("999")'
            assert StateKey.parse(info["state_key"]).site_id == "shop"
            assert info["element"] is None
            link = next(node for node in first.shown if node.role == "link")
            step = await env.step(act(f'click("{link.bid}")'))
            assert step.info["element"] == {"role": "link", "name": link.name}
            assert StateKey.parse(step.info["state_key"]).has_error, "the state in which the action was chosen"
            assert step.info["error"] == ""
            content = step.observation.messages[-1].content
            assert '# Recent Actions\nclick("999")\n' in content
            step = await env.step(act("mouse_click(1, 1)"))
            assert "not part of this task" in step.info["error"]
            step = await env.step(Action(content="Done."))
            assert (step.terminated, step.success, step.reward) == (True, False, 0.0)
            repeated = await env.step(Action(content="Done."))
            assert repeated.terminated
        finally:
            await env.close()

    chromium.run(run())


def test_a_conversation_that_goes_on_has_the_rules_once(chromium: RunningBrowser) -> None:
    async def run() -> None:
        env = environment(chromium.browser, levels=[1], fresh=False, prompt="halo", format="web_json", screenshots=True)
        first = await env.reset(env.tasks("train", 1)[0], 0)
        second = (await env.step(act("noop(0)"))).observation
        await env.close()
        assert [message.role for message in first.messages] == ["system", "user"]
        assert "JSON object" in first.messages[0].content
        assert "# Valid Element Ids\n" in first.messages[1].content
        assert first.messages[1].images[0].startswith("data:image/png;base64,")
        assert (second.fresh, [message.role for message in second.messages]) == (False, ["user"])
        assert "# Recent Actions" not in second.messages[0].content

    chromium.run(run())


@pytest.mark.parametrize(
    ("reward", "expected"), [("success", 1.0), ("progress", 1.0), ("dense", None)]
)  # fmt: skip
def test_rewards(chromium: RunningBrowser, reward: str, expected: float | None) -> None:
    async def run() -> None:
        env = environment(chromium.browser, levels=[1], reward=reward)
        task = env.tasks("train", 1)[0]
        policy, observation, total, num_steps = env.expert(task), await env.reset(task, 0), 0.0, 0
        while True:
            step = await env.step(policy(observation))
            total, observation, num_steps = total + step.reward, step.observation, num_steps + 1
            if step.terminated:
                break
        await env.close()
        if expected is not None:
            assert total == pytest.approx(expected)
        else:
            assert total > 2.0, "progress and success, and something for each step that is no error"

    chromium.run(run())


def test_collected_episodes_name_the_source_of_every_action(tmp_path: Any, chromium: RunningBrowser) -> None:
    options = {"levels": [1], "sites": ["shop"]}
    settings = CollectSettings(environment="web", environment_options=options, num_tasks=2, out=tmp_path)
    result = collect(settings, progress=False)
    episodes = [read_episode(path) for path in result.rows]
    assert [episode.outcome for episode in episodes] == [Outcome.SUCCESS] * 2
    assert {str(turn.source) for episode in episodes for turn in episode.turns} == {"expert"}


def test_faults_are_drawn_from_the_seed_of_the_episode(chromium: RunningBrowser) -> None:
    async def run(seed: int) -> str:
        env = environment(chromium.browser, levels=[1], faults={"popup": 0.5})
        first = await env.reset(env.tasks("train", 1)[0], seed)
        await env.close()
        return first.messages[-1].content

    pages = [chromium.run(run(seed)) for seed in (0, 0, 1, 2, 3)]
    assert pages[0] == pages[1]
    assert len(set(pages)) > 1


def test_an_expert_does_not_use_what_is_not_shown() -> None:
    nodes = [Node("button", "Go", "4")]
    assert resolve(PageAction("click", "button", "Go"), nodes) == act('click("4")')
    assert resolve(PageAction("goto", text="/shop/"), nodes) == act('goto("http://web.test/shop/")')
    with pytest.raises(UserError, match="does not show"):
        resolve(PageAction("click", "button", "Stop"), nodes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observe": "html"}, "observe"),
        ({"prompt": "long"}, "prompt"),
        ({"actions": ["clik"]}, "click"),
        ({"top_k": 0}, "top_k"),
        ({"reward": "speed"}, "reward"),
        ({"faults": {"fire": 0.1}}, "fault"),
        ({"faults": {"error": 2}}, "from 0 to 1"),
    ],
)
def test_wrong_options_are_refused(options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        WebEnvironment(**options)


def test_a_missing_browser_is_an_error_of_one_sentence() -> None:
    with pytest.raises(UserError, match="apt-get install chromium"):
        Browser("/usr/bin/no-such-browser").check()


def test_an_option_that_is_a_list_of_names_may_be_one_name() -> None:
    assert {task.fields["site"] for task in WebEnvironment(sites="mail").tasks("train", 20)} == {"mail"}
    with pytest.raises(UserError, match=r"no site '\[mail\]'"):
        WebEnvironment(sites="[mail]").tasks("train", 1)
