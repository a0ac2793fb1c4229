"""MiniWoB++: BrowserGym's panel, its scoring, and scripted policies in a real Chromium."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from practicum.environment import Action, Step, ToolCall
from practicum.environments.web.browser import Browser
from practicum.environments.web.miniwob import MINIWOB_ACTIONS, MiniWobEnvironment
from practicum.environments.web.miniwob_policies import POLICIES
from practicum.environments.web.miniwob_tasks import ALL_TASKS, ANCHORS, TEST_TASKS, TRAIN_TASKS, page_seed, panel
from practicum.errors import UserError
from practicum.evaluation.result_table import describe_published
from practicum.task import Task
from tests.environments.web.conftest import RunningBrowser

needs_pages = pytest.mark.skipif(importlib.util.find_spec("miniwob") is None, reason="needs the package miniwob")
MAX_STEPS = 10
FEW = ("enter-text", "click-checkboxes")
UNSURE = {"click-test-transfer", "click-checkboxes-large"}
"""Tasks that their policies do not always solve: a button may cover the other, and there may be too many boxes."""


def environment(browser: Browser, **options: Any) -> MiniWobEnvironment:
    env = MiniWobEnvironment(**options)
    env.resources = {"browser": browser}  # type: ignore[assignment]
    return env


async def run_policy(env: MiniWobEnvironment, task: Task) -> tuple[Step, list[str]]:
    """The last step of the scripted policy's episode, and all texts that it was shown."""
    policy, observation, texts = env.expert(task), await env.reset(task, 0), []
    try:
        for _ in range(MAX_STEPS):
            texts.append(observation.messages[-1].content)
            step = await env.step(policy(observation))
            observation = step.observation
            if step.terminated:
                break
        return step, texts
    finally:
        await env.close()


def test_the_panel_is_browsergyms() -> None:
    assert (len(TRAIN_TASKS), len(TEST_TASKS), len(set(ALL_TASKS))) == (62, 63, 125)
    episodes = panel()
    assert len(episodes) == 625
    # numpy.random.RandomState(42).randint(0, 34, 5), task after task
    assert episodes[:6] == (*(("ascending-numbers", seed) for seed in (28, 14, 7, 20, 18)), ("bisect-angle", 22))
    assert Counter(name for name, _ in episodes) == dict.fromkeys(ALL_TASKS, 5)
    assert max(seed for _, seed in episodes) < 34
    assert (page_seed(0), page_seed(28)) == (985772, 42241)


def test_the_test_split_is_the_panel_and_training_has_other_seeds() -> None:
    env = MiniWobEnvironment()
    test = env.tasks("test", 1000)
    assert [(task.fields["site"], task.fields["seed"]) for task in test] == [
        episode for episode in panel() if episode[0] in TEST_TASKS
    ]
    every = MiniWobEnvironment(panel="all").tasks("test", 1000)
    assert len({task.id for task in every}) == len({task.hash for task in every}) == 625, "a seed may be drawn twice"
    train, val = env.tasks("train", 200), env.tasks("val", 200)
    assert {task.fields["site"] for task in (*train, *val)} <= set(TRAIN_TASKS)
    assert not {task.hash for task in train} & {task.hash for task in val}
    assert min(task.fields["seed"] for task in (*train, *val)) >= 34
    assert [task.id for task in env.tasks("train", 5)] == [task.id for task in train[:5]]
    assert {task.fields["site"] for task in MiniWobEnvironment(tasks=["click-link"]).tasks("test", 9)} == {"click-link"}


def test_published_scores_stand_beside_the_whole_panel_and_the_test_tasks() -> None:
    env = MiniWobEnvironment(panel="all")
    assert env.published_scores(env.tasks("test", 625)) == ANCHORS
    assert env.published_scores(env.tasks("test", 624)) == {}
    test_tasks = MiniWobEnvironment().tasks("test", 315)
    assert env.published_scores(test_tasks)["GPT-4o, all 125 tasks"] == ANCHORS["GPT-4o"]
    assert env.published_scores(test_tasks[1:]) == {}
    lines = "\n".join(describe_published(ANCHORS))
    assert "GPT-4o-mini" in lines
    assert "56.6 %" in lines
    assert describe_published({}) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [({"panel": "some"}, "panel"), ({"tasks": ["click-buton"]}, "click-button"), ({"folder": "/no/such"}, "no folder")],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MiniWobEnvironment(**options).tasks("test", 1)


@needs_pages
def test_scripted_policies_solve_tasks(chromium: RunningBrowser) -> None:
    env = environment(chromium.browser, panel="all", tasks=FEW)
    for name in FEW:
        task = next(task for task in env.tasks("test", 625) if task.fields["site"] == name)
        step, texts = chromium.run(run_policy(env, task))
        assert (step.terminated, step.success, step.reward, step.info["raw_reward"]) == (True, True, 1.0, 1.0)
        goal, page = texts[0].split("# Accessibility Tree")
        assert env.goal in goal
        assert env.goal not in page, "the goal is not part of the page"
        assert "Last reward" not in page
    assert chromium.run(run_policy(env, task))[1] == texts, "the same episode again"


@needs_pages
def test_an_episode_ends_with_a_failure_and_does_not_decay_with_time(chromium: RunningBrowser) -> None:
    async def run() -> None:
        env = environment(chromium.browser, panel="all", tasks=["click-test-2"], actions=[*MINIWOB_ACTIONS, "goto"])
        task = env.tasks("test", 1)[0]
        await env.reset(task, 0)
        wrong = next(node for node in env.view.nodes if node.name == "TWO")
        step = await env.step(Action(calls=(ToolCall("click", {"bid": wrong.bid}),)))
        assert (step.terminated, step.success, step.reward, step.info["raw_reward"]) == (True, False, 0.0, -1.0)
        await env.reset(task, 0)
        await env.session.tab.evaluate("core.ept0 -= 900000")  # as if a quarter of an hour had passed
        right = next(node for node in env.view.nodes if node.name == "ONE")
        step = await env.step(Action(calls=(ToolCall("click", {"bid": right.bid}),)))
        assert (step.reward, step.info["raw_reward"]) == (1.0, 1.0)
        assert await env.session.tab.evaluate("WOB_REWARD_GLOBAL") < 0.2
        await env.reset(task, 0)
        step = await env.step(Action(calls=(ToolCall("goto", {"url": "http://miniwob.test/miniwob/click-link.html"}),)))
        assert (step.terminated, step.success) == (True, False), "another page is another task"
        await env.close()

    chromium.run(run())


@needs_pages
def test_pages_of_a_folder_are_tasks_too(chromium: RunningBrowser, tmp_path: Path) -> None:
    folder = tmp_path / "compwob"
    folder.mkdir()
    (folder / "press-it.html").write_text("""<html><head><title>Own</title><link rel=stylesheet href="../core/core.css">
      <script src="../core/core.js"></script><script>
      const genProblem = () => {
        const name = core.sample(['red', 'blue']);
        document.getElementById('area').innerHTML = '<button>red</button><button>blue</button>';
        for (const one of document.querySelectorAll('button'))
          one.onclick = () => core.endEpisode(one.textContent === name ? 1 : -1, true);
        document.getElementById('query').textContent = 'Press ' + name;
      };
      window.onload = () => core.startEpisode();
      </script></head><body><div id=wrap><div id=query></div><div id=area></div></div></body></html>""")

    async def run() -> None:
        env = environment(chromium.browser, folder=str(folder))
        tasks = env.tasks("test", 100)
        assert [task.fields["site"] for task in tasks] == ["press-it"] * 5
        assert env.published_scores(tasks) == {}
        await env.reset(tasks[0], 0)
        button = next(node for node in env.view.nodes if node.name == env.goal.removeprefix("Press "))
        step = await env.step(Action(calls=(ToolCall("click", {"bid": button.bid}),)))
        assert step.success
        await env.close()

    chromium.run(run())


@needs_pages
@pytest.mark.slow
def test_scripted_policies_solve_more_than_twenty_tasks(chromium: RunningBrowser) -> None:
    env = environment(chromium.browser, panel="all")
    firsts = {task.fields["site"]: task for task in reversed(env.tasks("test", 625))}
    solved = {name for name in POLICIES if chromium.run(run_policy(env, firsts[name]))[0].success}
    assert set(POLICIES) - solved <= UNSURE
    assert len(solved) > 40


@needs_pages
@pytest.mark.slow
def test_every_task_starts_in_headless_chromium(chromium: RunningBrowser) -> None:
    async def run() -> None:
        env = environment(chromium.browser, panel="all")
        firsts = {task.fields["site"]: task for task in reversed(env.tasks("test", 625))}
        for name in ALL_TASKS:
            await env.reset(firsts[name], 0)
            assert env.goal.strip(), name
            assert len(env.view.nodes) > 1, name
        await env.close()

    chromium.run(run())
