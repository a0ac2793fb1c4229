from __future__ import annotations

import asyncio

import pytest

from practicum import registry
from practicum.environment import SPLITS, Action, Step
from practicum.environments.affine.answers import read_program
from practicum.environments.affine.ded import NUM_CASES, DedEnvironment
from practicum.environments.affine.program_runner import run_jobs
from practicum.environments.affine.test_cases import read_cases, read_verification
from practicum.errors import JudgeError, UserError
from practicum.sandbox import base
from practicum.sandbox.base import Sandbox
from practicum.sandbox.limits import Reason, Result
from practicum.task import Task
from practicum.utils.concurrency import Deadline, slot

PAPER = Task(
    "t",
    "affine:ded",
    "train",
    {
        "question": "Read two integers and print their sum",
        "test_cases": [{"input": "1\n2", "output": "3"}, {"input": "5\n-7", "output": "-2"}],
        "solution": "a = int(input())\nb = int(input())\nprint(a + b)",
    },
)


@pytest.fixture(autouse=True, scope="module")
def _needs_a_sandbox() -> None:
    try:
        base.current()
    except UserError as error:
        pytest.skip(f"isolation is NOT tested: {error}")


def steps(world: DedEnvironment, task: Task, *replies: str) -> list[Step]:
    async def run() -> list[Step]:
        await world.reset(task, 0)
        return [await world.step(Action(content=reply)) for reply in replies]

    return asyncio.run(run())


def task_of(*cases: dict[str, object]) -> Task:
    return Task("t", "affine:ded", "train", {"question": "?", "test_cases": list(cases)})


def test_golden_example_of_the_paper() -> None:
    world = registry.environment_class("affine:ded")()
    assert isinstance(world, DedEnvironment)
    system, user = asyncio.run(world.reset(PAPER, 0)).messages
    assert "```python" in system.content
    assert user.content == PAPER.fields["question"]
    reply = "I add them.\n```python\na = int(input())\nb = int(input())\nprint(a + b)\n```"
    (step,) = steps(world, PAPER, reply)
    assert (step.reward, step.terminated, step.success) == (1.0, True, True)
    assert step.components == {"completion": 1.0, "passed": 2.0, "cases": 2.0}
    assert step.observation.messages[0].content == "2 of 2 tests pass."


@pytest.mark.parametrize(
    ("reply", "passed"),
    [
        ("print(int(input()) + int(input()))", 2),  # no fence: the whole reply
        ("def solve():\n    print(int(input()) + int(input()))", 2),  # never called: called for it
        ("print(abs(int(input()) + int(input())))", 1),
        ("print(3)", 1),
        ("import sys\nprint(sum(map(int, sys.stdin)))\nprint('x', file=sys.stderr)", 0),  # it wrote to stderr
        ("import sys\nprint(sum(map(int, sys.stdin)))\nsys.exit(1)", 2),
        ("nothing", 0),
        ("print(", 0),
        ("raise SystemExit('3')", 0),
        ("print('Sum:', int(input()) + int(input()))", 0),
        ("while True: pass", 0),
    ],
)
def test_replies(reply: str, passed: int) -> None:
    (step,) = steps(DedEnvironment(cpu_seconds=1, reward="shaped"), PAPER, reply)
    assert (step.components["passed"], step.success, step.terminated) == (passed, passed == 2, True)
    assert step.reward == (1.0 if passed == 2 else pytest.approx(0.2 * passed / 2))
    # Only a program that passes all tests is paid by the native reward.
    assert steps(DedEnvironment(cpu_seconds=1), PAPER, reply)[0].reward == float(passed == 2)


@pytest.mark.parametrize("tests", [[{"input": "1", "output": "1"}], ["assert f(1) == 1"]])
def test_a_step_s_deadline_stands_still_until_its_programs_have_a_place(
    monkeypatch: pytest.MonkeyPatch, tests: list[object]
) -> None:
    narrow = Sandbox(base.current().launcher, concurrency=1)
    monkeypatch.setattr(narrow, "execute", lambda *given: Result("", "", 0, Reason.OK, 0.0))
    monkeypatch.setattr(base, "current", lambda: narrow)
    world = DedEnvironment()

    async def wait() -> Step:
        await world.reset(Task("t", "affine:ded", "train", {"question": "?", "test_cases": tests}), 0)
        with slot(narrow.slots):
            step = world.step(Action(content="def f(x):\n    return x"))
            pending = asyncio.ensure_future(Deadline(0.4, "environment step").of(step))
            await asyncio.sleep(0.7)
        return await pending

    assert asyncio.run(wait()).terminated


def test_an_empty_reply_is_told_so() -> None:
    first, second = steps(DedEnvironment(reward="shaped"), PAPER, "```python\n\n```", "print(3)")
    assert (first.terminated, first.reward, first.info["valid"]) == (False, -0.05, False)
    assert "there is no program in it" in first.observation.messages[0].content
    assert second.terminated


def test_what_the_agent_is_told_hides_the_tests() -> None:
    world = DedEnvironment(tries=2)
    leak = "import sys\nraise ValueError(sys.stdin.read())"
    first, second = steps(world, PAPER, leak, PAPER.fields["solution"])
    assert first.observation.messages[0].content == "0 of 2 tests pass. 2 ended in an error or too late."
    assert not first.terminated
    assert second.success
    shown = asyncio.run(world.reset(PAPER, 0)).messages
    assert "-7" not in " ".join(message.content for message in shown)


def test_function_calls_and_unknown_types() -> None:
    call = {"type": "function_call", "fn_name": "f", "input": [[1, 2], "x"], "output": [[1, 2, "x"]]}
    truth = {"type": "function_call", "fn_name": "f", "input": [[], True], "output": [True]}
    code = "def f(xs, y):\n    return y if y is True else xs + [y]"
    other = {"type": "images", "input": 1}
    (step,) = steps(DedEnvironment(), task_of(call, truth, other), code)
    assert (step.success, step.components["cases"]) == (True, 2.0)
    lines = {"type": "stdin_stdout", "input": ["1 2", "3"], "output": ["6"]}
    (step,) = steps(DedEnvironment(), task_of(lines), "import sys\nprint(sum(map(int, sys.stdin.read().split())))")
    assert step.success
    with pytest.raises(JudgeError, match="no test case is of a type"):
        steps(DedEnvironment(), task_of(other), "print(1)")


def test_a_list_that_a_call_gives_is_compared_whole() -> None:
    case = {"type": "function_call", "fn_name": "f", "input": [3], "output": [0, 1, 2]}
    for body, right in (("list(range(n))", True), ("0", False), ("[0]", False)):
        (step,) = steps(DedEnvironment(), task_of(case), f"def f(n):\n    return {body}")
        assert step.success is right, body


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ('{"language": "python", "test_cases": [{"type": "stdin_stdout", "input": "1", "output": "2"}]}', 1),
        ("{'test_cases': [{'input': '1', 'output': '2'}, {'input': '3', 'output': '4'}]}", 2),
        ([{"input": "1", "output": "2"}], 1),
    ],
)
def test_verification_info(value: object, count: int) -> None:
    assert len(read_cases(read_verification(value))) == count


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{broken", "neither JSON nor a Python literal"),
        ({}, "no list of test cases"),
        ({"test_cases": []}, "no list of test cases"),
        ([1], "not an object"),
        (None, "no list of test cases"),
        ([{"input": "1"}], "no 'output'"),
        ([{"type": "function_call", "fn_name": "f()", "input": [], "output": 1}], "no 'fn_name'"),
        ([{"type": "function_call", "fn_name": "f", "input": 3, "output": 1}], "not a list of arguments"),
    ],
)
def test_broken_verification_info(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_cases(read_verification(value))


def test_expert_solves_every_level() -> None:
    """All in few guests: what the environment would run one by one."""
    world = DedEnvironment()
    tasks = world.tasks("train", 60)
    jobs, tests = [], []
    for task in tasks:
        program = read_program(world.expert(task)(None).content)  # type: ignore[arg-type]
        assert len(task.fields["test_cases"]) == NUM_CASES
        for case in read_cases(task.fields["test_cases"])[:3]:
            jobs.append(case.job(program))
            tests.append(case)
    results = run_jobs(jobs[:90]) + run_jobs(jobs[90:])
    assert all(case.passes(run) for case, run in zip(tests, results, strict=True))


def test_hidden_tests_are_not_in_the_prompt() -> None:
    for task in DedEnvironment().tasks("val", 100):
        question, cases = task.fields["question"], task.fields["test_cases"]
        _, _, example = question.partition("\nExample input:\n")
        assert (not example) == (task.fields["level"] < 3)
        assert example.partition("\nExample output:\n")[0] not in [case["input"] for case in cases]
        assert len({case["output"] for case in cases}) > 1


def test_splits_share_no_problem_and_ids_are_stable() -> None:
    world = DedEnvironment()
    results = {split: [t for seed in range(3) for t in world.tasks(split, 100, seed)] for split in SPLITS}
    requests = {s: {t.fields["question"].partition("\n")[0] for t in tasks} for s, tasks in results.items()}
    assert not requests["train"] & requests["val"]
    assert not requests["train"] & requests["test"]
    assert not requests["val"] & requests["test"]
    assert [task.id for task in DedEnvironment().tasks("test", 2)] == IDS


IDS = ["affine-ded-b0dfba0ca1b529e7", "affine-ded-60086bf0cbd62163"]


def test_there_are_thousands_of_problems() -> None:
    tasks = DedEnvironment().tasks("train", 2000)
    assert len({task.fields["question"].partition("\n")[0] for task in tasks}) == 2000
    assert len({task.fields["template"] for task in tasks}) >= 60


def test_wrong_options_and_tasks() -> None:
    with pytest.raises(UserError, match="Did you mean 'shaped'"):
        DedEnvironment(reward="shape")
    with pytest.raises(UserError, match="lacks 'question' or 'test_cases'"):
        asyncio.run(DedEnvironment().reset(Task("t", "affine:ded", "train", {"question": "?"}), 0))
    with pytest.raises(UserError, match="has no 'solution'"):
        DedEnvironment().expert(task_of({"input": "", "output": ""}))
