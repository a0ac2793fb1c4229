"""Whose clock ran out: an agent whose own programs use up the time has failed; a slow environment has not scored it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from practicum.agent import Agent, Deadlines
from practicum.chat.renderer import Renderer
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.environments.affine.abd import AbdEnvironment
from practicum.environments.code import CodeEnvironment
from practicum.environments.tool_agent import MAX_CALLS_PER_REPLY, ToolEnvironment
from practicum.rollout import run_episode
from practicum.sandbox import base
from practicum.task import Task
from practicum.trajectory import Outcome, Trajectory, plan_attempts
from practicum.utils.concurrency import agent_time
from tests.test_rollout import Says


@pytest.fixture(autouse=True, scope="module")
def _sandbox() -> None:
    base.current()  # opened before the first clock runs


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(
    renderer: Renderer, task: Task, make: Callable[[], Environment], *replies: str, step: float, episode: float = 60.0
) -> Trajectory:
    (attempt,) = plan_attempts([task], 1, 0)
    agent = Agent(deadlines=Deadlines(step=step, episode=episode), max_turns=len(replies))
    return asyncio.run(run_episode(attempt, make, agent, Says(renderer, *replies), renderer))


TASK = Task("t", "code", "train", {"question": "?", "test_cases": [f"x = f({n})\nassert x == {n}" for n in range(13)]})
SLEEP = call("python_executor", code="import time\ntime.sleep(9.5)")


def code() -> Environment:
    return CodeEnvironment(format="hf")


def test_a_reply_of_many_slow_programs_is_scored(renderer: Renderer) -> None:
    begin = time.monotonic()
    episode = play(renderer, TASK, code, SLEEP * 14, "def f(x):\n    return 1", step=2.0)
    assert episode.outcome is Outcome.FAILURE, episode.error
    shown = [message.content for message in episode.turns[1].messages]
    assert len(shown) == 14
    assert "took too long" in shown[0]
    assert "have used up their time" in shown[-1]
    assert time.monotonic() - begin < 12


def test_an_answer_that_sleeps_under_many_tests_is_a_failure(renderer: Renderer) -> None:
    episode = play(renderer, TASK, code, "import time\ndef f(x):\n    time.sleep(1000)", step=2.0)
    assert (episode.outcome, episode.reward) == (Outcome.FAILURE, 0.0), episode.error


def test_an_input_on_which_the_program_never_ends_is_a_failure(renderer: Renderer) -> None:
    fields = {"program": "import time\ntime.sleep(float(input()))\nprint(1)", "output": "1"}
    task = Task("t", "affine:abd", "train", fields)
    episode = play(renderer, task, AbdEnvironment, "<INPUT>\n1000\n</INPUT>", step=1.5)
    assert episode.outcome is Outcome.FAILURE, episode.error


def test_a_reply_may_have_so_many_calls(renderer: Renderer) -> None:
    task = Task("t", "tools", "train", {"question": "?", "answer": "4"})
    make = lambda: ToolEnvironment(["calculator"], "math_reward")  # noqa: E731
    reply = call("calculator", expression="2+2") * (MAX_CALLS_PER_REPLY + 2)
    episode = play(renderer, task, make, reply, "4", step=60.0)
    shown = [message.content for message in episode.turns[1].messages]
    assert shown[:MAX_CALLS_PER_REPLY] == ["4"] * MAX_CALLS_PER_REPLY
    assert all(text.startswith("Error: not run, a reply may have at most 16 calls") for text in shown[-2:])
    assert episode.outcome is Outcome.SUCCESS


class Slow(Environment):
    """An environment that takes longer than its deadline; `own` says whether a program of the agent does."""

    own = False

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation((Message("user", "?"),))

    async def step(self, action: Action) -> Step:
        if self.own:
            with agent_time():
                await asyncio.sleep(0.3)
        else:
            await asyncio.sleep(0.3)
        return Step()


class OwnProgram(Slow):
    own = True


@pytest.mark.parametrize(("make", "outcome"), [(Slow, Outcome.TIMEOUT), (OwnProgram, Outcome.FAILURE)])
@pytest.mark.parametrize(("step", "episode"), [(0.1, 60.0), (60.0, 0.5)])
def test_a_deadline_says_whose_clock_ran_out(
    renderer: Renderer, make: type[Environment], outcome: Outcome, step: float, episode: float
) -> None:
    task = Task("t", "slow", "train", {"question": "?"})
    result = play(renderer, task, make, "a", "b", "c", step=step, episode=episode)
    assert result.outcome is outcome
    assert result.error is not None


def test_a_tool_that_runs_programs_of_the_agent_shows_that_it_was_stopped(renderer: Renderer, tmp_path: Path) -> None:
    file = tmp_path / "shell.py"
    file.write_text(
        "import asyncio\nfrom practicum.tools.base import tool\n"
        "@tool(timeout=0.05, agent_code=True)\nasync def shell(command: str) -> str:\n    '''Run.'''\n"
        "    await asyncio.sleep(5)\n    return ''\n"
    )
    task = Task("t", "tools", "train", {"question": "?", "answer": "4"})
    make = lambda: ToolEnvironment([f"{file}:shell"], "math_reward")  # noqa: E731
    episode = play(renderer, task, make, call("shell", command="sleep 5"), "4", step=5.0)
    assert episode.turns[1].messages[0].content == "Error: stopped, it took more than 0.05 s"
    assert episode.outcome is Outcome.SUCCESS
