"""The experts solve the templates in a real Chromium, by what the observation shows."""

from __future__ import annotations

import pytest

from practicum.environments.web.browser import Browser
from practicum.environments.web.environment import WebEnvironment
from practicum.environments.web.sites.variation import AXES
from practicum.environments.web.tasks import templates
from practicum.task import Task
from tests.environments.web.conftest import RunningBrowser
from tests.environments.web.playing import make_task

MAX_STEPS = 25


async def is_solved(browser: Browser, task: Task) -> bool:
    environment = WebEnvironment()
    environment.resources = {"browser": browser}  # type: ignore[assignment]
    policy = environment.expert(task)
    try:
        observation = await environment.reset(task, 0)
        for _ in range(MAX_STEPS):
            step = await environment.step(policy(observation))
            if step.terminated:
                return bool(step.success)
            observation = step.observation
    finally:
        await environment.close()
    return False


@pytest.mark.parametrize("name", ["calendar/accept", "mail/block", "shop/cart-remove"])
def test_the_expert_solves_a_task_of_every_site_under_all_variations(chromium: RunningBrowser, name: str) -> None:
    assert chromium.run(is_solved(chromium.browser, make_task(name, 3, *AXES)))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(templates()))
def test_the_expert_solves_every_template(chromium: RunningBrowser, name: str) -> None:
    assert chromium.run(is_solved(chromium.browser, make_task(name, 4)))
    assert chromium.run(is_solved(chromium.browser, make_task(name, 5, *AXES)))
