from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from practicum import registry
from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, Step, ToolCall
from practicum.environments.code import CodeEnvironment
from practicum.environments.code_problems import TEMPLATES, make_problem
from practicum.errors import UserError
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.sandbox import base
from practicum.sandbox.base import Sandbox
from practicum.sandbox.limits import Reason, Result, SandboxError
from practicum.task import Task
from practicum.tools.errors import ToolFailure
from practicum.tools.python_executor import python_executor
from practicum.trajectory import Outcome, Trajectory, plan_attempts
from practicum.utils.concurrency import Deadline, slot
from tests.sandbox.sandbox_world import sandbox_processes, zombies


@pytest.fixture(autouse=True, scope="module")
def _needs_a_sandbox() -> None:
    try:
        base.current()
    except UserError as error:
        pytest.skip(f"isolation is NOT tested: {error}")


def play(source: str, renderer: Renderer, count: int, format: str = "code") -> list[Trajectory]:
    world = CodeEnvironment(format=format, levels=(1, 2, 3, 4))
    engine = ScriptedEngine.of(source, world, make_format(format), renderer)
    planned = plan_attempts(world.tasks("train", count), 1, 0)
    make = lambda: CodeEnvironment(format=format)  # noqa: E731
    return asyncio.run(run_episodes(planned, make, Agent(format=format, max_turns=4), engine, renderer))


@pytest.mark.parametrize(("format", "count"), [("code", 16), ("hf", 8), ("react", 8)])
def test_the_expert_solves_everything(renderer: Renderer, format: str, count: int) -> None:
    episodes = play("expert", renderer, count, format)
    assert {(e.outcome, e.reward, len(e.turns)) for e in episodes} == {(Outcome.SUCCESS, 1.0, 2)}
    assert all(e.components == {"passed": 5.0, "cases": 5.0, "compiled": 1.0} for e in episodes)
    assert not any("Error" in e.turns[1].messages[-1].content for e in episodes)
    assert not sandbox_processes()
    assert not zombies()


def test_the_null_policy_is_at_its_floor(renderer: Renderer) -> None:
    episodes = play("null", renderer, 10)
    assert {e.outcome for e in episodes} == {Outcome.FAILURE}
    assert sum(e.reward for e in episodes) == CodeEnvironment.floor == 0.0


def test_the_random_policy_is_scored_and_rarely_succeeds(renderer: Renderer) -> None:
    episodes = play("random", renderer, 20)
    assert all(e.scored for e in episodes)
    assert sum(e.outcome is Outcome.SUCCESS for e in episodes) <= 4


def test_every_template_agrees_with_its_reference() -> None:
    """Solutions and references are written apart; here the solution runs in this process: it is our own text."""
    seen: set[object] = set()
    for number in range(2000):
        problem = make_problem(random.Random(number), 1 + number % len(TEMPLATES))
        seen.add(problem["template"])
        namespace: dict[str, object] = {}
        exec(str(problem["solution"]), namespace)
        cases = problem["test_cases"]
        assert isinstance(cases, list)
        assert len({case["call"] for case in cases}) == len(cases) == 5
        assert [eval(case["call"], namespace) for case in cases] == [case["expected"] for case in cases], problem
        assert len({repr(case["expected"]) for case in cases}) > 1
        assert problem["example"] not in [case["call"] for case in cases]
    assert len(seen) == sum(map(len, TEMPLATES.values())) >= 12


def test_level_1_is_short() -> None:
    for number in range(300):
        problem = make_problem(random.Random(number), 1)
        assert len(str(problem["question"])) < 80
        assert len(str(problem["solution"]).splitlines()) == 2


def test_splits_are_disjoint_and_stable() -> None:
    world = CodeEnvironment(levels=(1, 2, 3, 4))
    splits = {s: {t.fields["question"] for seed in range(3) for t in world.tasks(s, 200, seed)}
              for s in ("train", "val", "test")}  # fmt: skip
    assert not splits["train"] & splits["val"]
    assert not splits["train"] & splits["test"]
    assert not splits["val"] & splits["test"]
    levels = [task.fields["level"] for task in world.tasks("val", 8)]
    assert levels == [1, 2, 3, 4, 1, 2, 3, 4]
    assert world.tasks("test", 3)[2].hash == "45254539ec5e5376"  # the same on every machine


def test_asking_for_more_problems_than_there_are() -> None:
    with pytest.raises(UserError, match="ask for fewer"):
        CodeEnvironment(levels=(4,)).tasks("val", 100_000)


def test_the_answers_are_not_in_the_prompt(renderer: Renderer) -> None:
    world = CodeEnvironment()
    (task,) = world.tasks("train", 1)
    text = " ".join(message.content for message in asyncio.run(world.reset(task, 0)).messages)
    assert task.fields["question"] in text
    assert task.fields["test_cases"][0]["call"] not in text
    assert "return " not in text.replace("returns ", "")


def steps(world: CodeEnvironment, task: Task, *actions: Action) -> list[Step]:
    async def through() -> list[Step]:
        await world.reset(task, 0)
        return [await world.step(action) for action in actions]

    return asyncio.run(through())


@pytest.mark.parametrize("name", ["python_executor", "code_interpreter"])
@pytest.mark.parametrize("called", ["python_executor", "code_interpreter"])
def test_both_names_of_the_tool_work(name: str, called: str) -> None:
    world = CodeEnvironment(tools=[name])
    (task,) = world.tasks("train", 1)
    (step,) = steps(world, task, Action(calls=(ToolCall(called, {"code": "print(6 * 7)"}),)))
    assert [message.content for message in step.observation.messages] == ["Output:\n42"]
    assert registry.tool(name).name == name


def test_partial_credit_and_truncation() -> None:
    task = Task("t", "code", "train", {"question": "?", "test_cases": [
        {"call": "f(1)", "expected": 1}, {"call": "f(2)", "expected": 4}]})  # fmt: skip
    world = CodeEnvironment()
    (step,) = steps(world, task, Action(content="```python\ndef f(x):\n    return x\n```"))
    assert (step.reward, step.terminated, step.success) == (0.5, True, False)

    async def truncate() -> Step:
        await world.reset(task, 0)
        return await world.truncate()

    step = asyncio.run(truncate())
    assert (step.reward, step.truncated, step.components["cases"]) == (0.0, True, 2.0)


def test_any_json_file_of_tests(tmp_path: Path, renderer: Renderer) -> None:
    path = tmp_path / "problems.json"
    rows = [
        {"question": "Add two numbers from two lines.", "test_cases": [{"input": "1\n2", "output": "3"}],
         "solution": "print(int(input()) + int(input()))", "id": "stream"},
        {"question": "Square", "test_cases": ["assert square(3) == 9"], "code": "def square(x):\n    return x * x"},
        {"question": "Twice", "test_cases": ["def check(candidate):\n    assert candidate(2) == 4"],
         "prompt": "def twice(x):\n", "entry_point": "twice", "canonical_solution": "    return 2 * x\n"},
    ]  # fmt: skip
    path.write_text(json.dumps(rows))
    world = CodeEnvironment(files={"train": str(path)})
    engine = ScriptedEngine.of("expert", world, make_format("code"), renderer)
    planned = plan_attempts(world.tasks("train", 9), 1, 0)
    episodes = asyncio.run(run_episodes(planned, lambda: world_of(path), Agent(format="code"), engine, renderer))
    assert [e.outcome for e in episodes] == [Outcome.SUCCESS] * 3

    path.write_text(json.dumps([{"question": "?", "test_cases": [{"input": "1"}], "id": "odd"}]))
    with pytest.raises(UserError, match="problems.json', task 'odd': test case 0 must be"):
        world.tasks("train", 1)
    path.write_text(json.dumps([{"question": "?", "test_cases": ["assert f(1) == 1"]}]))
    with pytest.raises(UserError, match="has no 'solution'"):
        world.expert(world.tasks("train", 1)[0])


def world_of(path: Path) -> CodeEnvironment:
    return CodeEnvironment(files={"train": str(path)})


def test_wrong_options() -> None:
    with pytest.raises(UserError, match="code levels must be whole numbers from 1 to 4"):
        CodeEnvironment(levels=[9])
    with pytest.raises(UserError, match="Unknown tool"):
        CodeEnvironment(tools=["python_exec"])


def test_no_episode_begins_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise UserError("none works here: install bubblewrap")

    monkeypatch.setattr(base, "current", refused)
    with pytest.raises(UserError, match="install bubblewrap"):
        CodeEnvironment()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print(1)\n2 + 3", "1\n5"),
        ("x = 1", "(no output)"),
        ("'a'", "'a'"),
        ("print('so far')\n1/0", 'so far\nTraceback (most recent call last):\n  File "<program>", line 2, in <module>\n'
         "    1/0\n     ~^~\nZeroDivisionError: division by zero"),
        ("import sys; sys.exit(4)", "Error: exit status 4"),
        ("x = 'a' * 10**9", "Error: stopped, it wanted more than 256 MiB of memory"),
        ("while True: print('x' * 99)", "Error: stopped, it printed more than 16 KiB"),
        ("import os; os.kill(os.getpid(), 9)", "Error: it was killed"),
    ],
)  # fmt: skip
def test_what_the_tool_says(code: str, message: str) -> None:
    result = asyncio.run(python_executor.call({"code": code}))
    assert not result.failed
    if "printed more" in message:
        assert result.text.endswith(" …(cut)")
    else:
        assert result.text.splitlines() == message.splitlines()


def test_the_tool_keeps_nothing_between_calls() -> None:
    asyncio.run(python_executor.call({"code": "x = 1\nopen('f', 'w').write('1')"}))
    assert "NameError" in asyncio.run(python_executor.call({"code": "x"})).text
    assert "FileNotFoundError" in asyncio.run(python_executor.call({"code": "open('f')"})).text


def test_a_sandbox_that_cannot_run_is_not_shown_to_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*given: object, **named: object) -> None:
        raise SandboxError("the sandbox did not start: no room")

    monkeypatch.setattr(Sandbox, "run", broken)
    with pytest.raises(ToolFailure, match="no room"):
        asyncio.run(python_executor.call({"code": "1"}))


@pytest.mark.parametrize(
    "action",
    [
        Action(content="def f(x):\n    return x"),
        Action(calls=(ToolCall("python_executor", {"code": "1"}),)),
    ],
)
def test_a_step_s_deadline_stands_still_until_its_program_has_a_place(
    monkeypatch: pytest.MonkeyPatch, action: Action
) -> None:
    narrow = Sandbox(base.current().launcher, concurrency=1)
    monkeypatch.setattr(narrow, "execute", lambda *given: Result("compiled\n", "", 0, Reason.OK, 0.0))
    monkeypatch.setattr(base, "current", lambda: narrow)
    world = CodeEnvironment()
    task = Task("t", "code", "train", {"question": "?", "test_cases": [{"call": "f(1)", "expected": 1}]})

    async def wait() -> Step:
        await world.reset(task, 0)
        with slot(narrow.slots):
            pending = asyncio.ensure_future(Deadline(0.4, "environment step").of(world.step(action)))
            await asyncio.sleep(0.7)
        return await pending

    assert asyncio.run(wait()).terminated is not bool(action.calls)


def test_a_machine_without_a_sandbox_is_no_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Sandbox:
        raise UserError("install bubblewrap")

    monkeypatch.setattr(base, "current", none)
    with pytest.raises(UserError, match="install bubblewrap"):
        asyncio.run(python_executor.call({"code": "1"}))


def test_the_tool_refuses_other_arguments() -> None:
    assert asyncio.run(python_executor.call({"program": "1"})).failed
    assert asyncio.run(python_executor.call({"code": 1})).failed
