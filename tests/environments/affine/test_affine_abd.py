from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum import registry
from practicum.environment import SPLITS, Action, Step
from practicum.environments.affine.abd import AbdEnvironment
from practicum.environments.affine.abd_expert import work_backwards
from practicum.environments.affine.answers import read_input
from practicum.environments.affine.base import UnreadableAnswer
from practicum.environments.affine.program_runner import Job, run_jobs, same_output, with_newline
from practicum.errors import UserError
from practicum.sandbox import base
from practicum.task import Task

PAPER = Task(
    "t",
    "affine:abd",
    "train",
    {"program": "def solve():\n    x = int(input())\n    print(x * 2)", "output": "10", "input": "5"},
)


@pytest.fixture(autouse=True, scope="module")
def _needs_a_sandbox() -> None:
    try:
        base.current()
    except UserError as error:
        pytest.skip(f"isolation is NOT tested: {error}")


def steps(world: AbdEnvironment, task: Task, *replies: str) -> list[Step]:
    async def run() -> list[Step]:
        await world.reset(task, 0)
        return [await world.step(Action(content=reply)) for reply in replies]

    return asyncio.run(run())


def test_golden_example_of_the_paper() -> None:
    world = registry.environment_class("affine:abd")()
    assert isinstance(world, AbdEnvironment)
    system, user = asyncio.run(world.reset(PAPER, 0)).messages
    assert "<INPUT>...</INPUT>" in system.content
    assert user.content == f"{PAPER.fields['program']}\n\nExpected output:\n10"
    (step,) = steps(world, PAPER, "It doubles.\n<INPUT>\n5\n</INPUT>")
    assert (step.reward, step.terminated, step.success) == (1.0, True, True)
    assert step.observation.messages[0].content == "With that input the program prints:\n10"


def test_any_input_that_gives_the_output_counts() -> None:
    task = Task("t", "affine:abd", "train", {"program": "print(int(input()) % 7)", "output": "3", "input": "3"})
    for offered, right in (("10", True), ("-4", True), (" 17 ", True), ("3\nmore", True), ("4", False)):
        (step,) = steps(AbdEnvironment(), task, f"<INPUT>{offered}</INPUT>")
        assert (step.success, step.terminated) == (right, True), offered


@pytest.mark.parametrize(
    ("program", "output", "input_text"),
    [
        ("a = input()\nb = input()\nprint(len(a), b)", "0 5", "\n5"),
        ("print(input().count(' '))", "3", "  a "),
        ("a = input()\nprint(len(a), input())", "3 x", "a  \nx"),
    ],
)
def test_blanks_of_an_input_are_part_of_it(program: str, output: str, input_text: str) -> None:
    world = AbdEnvironment()
    task = Task("t", "affine:abd", "train", {"program": program, "output": output, "input": input_text})
    action = world.expert(task)(asyncio.run(world.reset(task, 0)))
    assert asyncio.run(world.step(action)).success


def test_a_reply_without_tags_is_told_so_and_may_be_repeated() -> None:
    first, second = steps(AbdEnvironment(reward="shaped"), PAPER, "5", "<INPUT>5</INPUT>")
    assert (first.terminated, first.reward, first.info["valid"]) == (False, -0.05, False)
    assert "between <INPUT> and </INPUT>" in first.observation.messages[0].content
    assert (second.reward, second.success) == (1.0, True)


def test_too_few_lines_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*given: object) -> None:
        raise AssertionError("it was run")

    monkeypatch.setattr("practicum.environments.affine.abd.run_jobs_async", never)
    (step,) = steps(AbdEnvironment(), PAPER, "<INPUT></INPUT>")
    assert (step.success, step.terminated) == (False, True)
    assert step.observation.messages[0].content == "The program reads more lines than that."


def test_wrong_inputs_and_the_shaped_reward() -> None:
    task = Task("t", "affine:abd", "train", {"program": "n = int(input())\nprint(1)\nprint(n)", "output": "1\n2"})
    (half,) = steps(AbdEnvironment(reward="shaped"), task, "<INPUT>3</INPUT>")
    assert half.reward == pytest.approx(0.1)
    assert (half.success, half.components["ran"]) == (False, 1.0)
    (broken,) = steps(AbdEnvironment(reward="shaped"), task, "<INPUT>three</INPUT>")
    assert (broken.reward, broken.components["ran"]) == (0.0, 0.0)
    assert "the program fails: ValueError: invalid literal" in broken.observation.messages[0].content
    first, second = steps(AbdEnvironment(tries=2), task, "<INPUT>3</INPUT>", "<INPUT>2</INPUT>")
    assert (first.terminated, second.success) == (False, True)
    with pytest.raises(UserError, match="has no 'input' for the expert"):
        AbdEnvironment().expert(task)


def test_a_program_that_complains_does_not_count() -> None:
    code = "import sys\nprint(int(input()))\nprint('note', file=sys.stderr)"
    task = Task("t", "affine:abd", "train", {"program": code, "output": "1"})
    assert not steps(AbdEnvironment(), task, "<INPUT>1</INPUT>")[0].success


def test_expert_solves_every_level_and_template() -> None:
    """All in few guests: what the environment would run one by one."""
    tasks = AbdEnvironment().tasks("train", 150)
    assert [task.fields["level"] for task in tasks[:6]] == [1, 2, 3, 4, 5, 1]
    assert len({task.fields["template"] for task in tasks}) >= 60
    replies = [AbdEnvironment().expert(task)(None).content for task in tasks]  # type: ignore[arg-type]
    jobs = [Job(t.fields["program"], with_newline(read_input(r) or "")) for t, r in zip(tasks, replies, strict=True)]
    results = run_jobs(jobs[:75]) + run_jobs(jobs[75:])
    assert all(r.ok and same_output(t.fields["output"], r.output) for t, r in zip(tasks, results, strict=True))


def test_the_answer_is_not_in_the_prompt() -> None:
    task = Task("t", "affine:abd", "train", {**PAPER.fields, "input": "987654"})
    shown = asyncio.run(AbdEnvironment().reset(task, 0)).messages
    assert "987654" not in " ".join(message.content for message in shown)


def test_splits_share_no_program_and_ids_are_stable() -> None:
    world = AbdEnvironment(levels=[1, 2])
    results = {split: [t for seed in range(3) for t in world.tasks(split, 100, seed)] for split in SPLITS}
    programs = {split: {t.fields["program"] for t in tasks} for split, tasks in results.items()}
    assert not programs["train"] & programs["val"]
    assert not programs["train"] & programs["test"]
    assert not programs["val"] & programs["test"]
    assert all(len({t.id for t in world.tasks(split, 100)}) == 100 for split in SPLITS)
    assert [task.id for task in AbdEnvironment().tasks("test", 2)] == IDS


IDS = ["affine-abd-6a3c421e41cf0fb4", "affine-abd-e551d32a3fafbdc4"]


@settings(max_examples=200, deadline=None)
@given(st.text() | st.from_regex(r"(</?INPUT>|</?think>|\n|[ab5 ]){0,10}"))
def test_reading_a_reply_gives_an_input_or_says_so(text: str) -> None:
    world = AbdEnvironment()
    if read_input(text) is None:
        with pytest.raises(UnreadableAnswer, match="<INPUT>"):
            world.read(text)
    else:
        assert world.read(text) == read_input(text)


def test_random_policy_guesses_now_and_then() -> None:
    world = AbdEnvironment(levels=[1])
    tasks = world.tasks("train", 40)
    policies = [world.random(task, 0) for task in tasks]
    offered = [read_input(policy(None).content) or "" for policy in policies]  # type: ignore[arg-type]
    jobs = [Job(t.fields["program"], with_newline(text)) for t, text in zip(tasks, offered, strict=True)]
    num_solved = sum(same_output(t.fields["output"], r.output) for t, r in zip(tasks, run_jobs(jobs), strict=True))
    assert num_solved <= 12
    assert len(set(offered)) > 10


def test_wrong_options() -> None:
    with pytest.raises(UserError, match="levels must be whole numbers from 1 to 5"):
        AbdEnvironment(levels=[9])
    with pytest.raises(UserError, match="cpu_seconds must be a whole number"):
        AbdEnvironment(cpu_seconds=0)
    with pytest.raises(UserError, match="needs 'program' and 'output'"):
        asyncio.run(AbdEnvironment().reset(Task("t", "affine:abd", "train", {"program": "print(1)"}), 0))


def test_no_episode_begins_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise UserError("none works here: install bubblewrap")

    monkeypatch.setattr(base, "current", refused)
    with pytest.raises(UserError, match="install bubblewrap"):
        AbdEnvironment()


def test_seeds_give_other_tasks() -> None:
    world = AbdEnvironment()
    assert {t.id for t in world.tasks("train", 20, 0)} != {t.id for t in world.tasks("train", 20, 1)}


def test_the_working_expert_shows_steps_that_lead_to_a_right_input() -> None:
    world = AbdEnvironment(levels=[1], expert="working")
    tasks = world.tasks("train", 40, 3)
    replies = [world.expert(task)(asyncio.run(world.reset(task, 0))).content for task in tasks]
    assert all(steps(world, task, reply)[-1].success for task, reply in zip(tasks, replies, strict=True))
    assert sum(" = " in reply for reply in replies) > 30  # of 14 templates, 13 are worked out
    task = replace(PAPER, fields={"program": "y = int(input())\nprint(y * 3 + 61)", "output": "10", "input": "-17"})
    shown = world.expert(task)(asyncio.run(world.reset(task, 0))).content
    assert shown == "y * 3 + 61 = 10\ny * 3 = 10 - 61 = -51\ny = -51 / 3 = -17\n<INPUT>\n-17\n</INPUT>"
    with pytest.raises(UserError, match="no expert 'work'"):
        AbdEnvironment(expert="work")


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("print(9 ** 9 ** 9)", "1"),
        ("x = int(input())\nprint(x ** 99999)", "1"),
        ("x = int(input())\nprint(x // 0)", "1"),
        ("x = int(input())\nprint(open('f'))", "1"),
        ("x = int(input())\nprint(x * 2)", "3"),
        ("x = int(input())\nprint(x * x - 2 * x)", "3"),
        ("def solve(): pass", "1"),
        ("", "1"),
        ("x = int(input())\nprint(x)", "one"),
        ("not python", "1"),
    ],
)
def test_what_cannot_be_worked_out_is_left_alone(program: str, output: str) -> None:
    assert work_backwards(program, output) is None


def test_thoughts_are_left_out_in_linear_time() -> None:
    assert read_input("<think><INPUT>1</INPUT></think><INPUT>2</INPUT><think>") == "2"
    assert read_input("<thinking>x</thinking><INPUT>3</INPUT><think><INPUT>4</INPUT></thinking>") == "4"
    begin = time.perf_counter()
    for text in ("<think>" * 40_000, "<think></thinking>" * 20_000, "<thinking></think>" * 20_000, "<INPUT>" * 40_000):
        read_input(text)
    assert time.perf_counter() - begin < 2
