from __future__ import annotations

import asyncio
import itertools
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum import registry
from practicum.environment import SPLITS, Action, Step, ToolCall
from practicum.environments.affine import formulas
from practicum.environments.affine.formulas import (
    THRESHOLDS,
    read_answer,
    satisfies_clause,
    solve,
    uniform,
    write_answer,
)
from practicum.environments.affine.sat import SatEnvironment
from practicum.errors import UserError
from practicum.task import Task

PAPER = [[1, 2, -3], [-1, 3]]


def task_of(clauses: list[list[int]], satisfiable: bool = True) -> Task:
    n = max(abs(literal) for clause in clauses for literal in clause)
    return Task("t", "affine:sat", "train", {"clauses": clauses, "n": n, "satisfiable": satisfiable})


def steps(world: SatEnvironment, task: Task, *replies: str) -> list[Step]:
    async def run() -> list[Step]:
        await world.reset(task, 0)
        return [await world.step(Action(content=reply)) for reply in replies]

    return asyncio.run(run())


def test_golden_example_of_the_paper() -> None:
    world = registry.environment_class("affine:sat")()
    assert isinstance(world, SatEnvironment)
    messages = asyncio.run(world.reset(task_of(PAPER), 0)).messages
    assert [m.role for m in messages] == ["system", "user"]
    assert "x1=True, x2=False" in messages[0].content
    assert "UNSAT" in messages[0].content
    assert messages[1].content == "(x1 ∨ x2 ∨ ¬x3) ∧ (¬x1 ∨ x3)"
    (step,) = steps(world, task_of(PAPER), "x1=True, x2=False, x3=True")
    assert (step.reward, step.terminated, step.success, step.progress) == (1.0, True, True, 1.0)
    assert step.components == {"completion": 1.0, "satisfied": 2.0, "clauses": 2.0}


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("x1=1, x3=1", True),
        ("x1=0,x2=1", True),  # a variable that no clause needs may be left out
        ("x2=True", False),  # nothing satisfies the second clause
        ("x1=True", False),
        ("x1=False x3=False", True),
        ("First x1=True, x3=False. No: x1=True, x3=True", True),  # the later value counts
        ("\\boxed{x1=True, x2=False, x3=True}", True),
        ("```\nx1=True\nx3=True\n```", True),
        ("x1=True, x3=True, x99=False", True),
        ("UNSAT", False),
        ("It is not UNSAT: x1=True, x3=True", True),
        ("x1=True, x3=True would do, but I say UNSAT", False),
        ("x" + "1" * 5000 + "=True, x1=False, x3=False", True),
    ],
)
def test_replies(reply: str, right: bool) -> None:
    (step,) = steps(SatEnvironment(), task_of(PAPER), reply)
    assert (step.success, step.terminated, step.reward) == (right, True, float(right))


@pytest.mark.parametrize("reply", ["nothing", "", "x1: True", "x1 = True", "x1=true", "UNSATISFIABLE", "x=True"])
def test_a_reply_without_an_answer_is_told_so_and_may_be_repeated(reply: str) -> None:
    first, second = steps(SatEnvironment(reward="shaped"), task_of(PAPER), reply, "x1=True, x3=True")
    assert (first.terminated, first.reward, first.info["valid"]) == (False, -0.05, False)
    assert "like x1=True, x2=False, or say UNSAT" in first.observation.messages[0].content
    assert (second.terminated, second.reward) == (True, 1.0)
    (native,) = steps(SatEnvironment(), task_of(PAPER), reply)
    assert native.reward == 0.0


def test_unsat_is_right_where_it_is() -> None:
    task = task_of([[1, 2], [-1, 2], [1, -2], [-1, -2]], satisfiable=False)
    assert steps(SatEnvironment(), task, "UNSAT")[0].success
    assert not steps(SatEnvironment(), task, "x1=True, x2=True")[0].success
    # Of a user's formula that does not say what it is, the solver is asked: only the clauses decide.
    unsaid = {key: value for key, value in task.fields.items() if key != "satisfiable"}
    assert steps(SatEnvironment(), Task("own", task.environment, "train", unsaid), "UNSAT")[0].success
    assert SatEnvironment().expert(task)(None).content == "UNSAT"  # type: ignore[arg-type]


def test_shaped_reward_pays_for_clauses_and_only_at_the_end() -> None:
    (step,) = steps(SatEnvironment(reward="shaped"), task_of(PAPER), "x2=True")
    assert step.reward == pytest.approx(0.2 * 0.5)
    assert step.components["step"] == step.reward
    world = SatEnvironment(reward="shaped", tries=2)
    first, second, third = steps(world, task_of(PAPER), "x2=True", "x2=True", "x1=True, x3=True")
    assert (first.terminated, first.reward, first.success) == (False, 0.0, None)
    assert first.observation.messages[0].content == "Not satisfied: (¬x1 ∨ x3)"
    assert (second.terminated, second.reward) == (True, pytest.approx(0.1))
    assert (third.terminated, third.reward, third.success) == (True, 0.0, False)


def test_calls_and_truncation() -> None:
    world = SatEnvironment()

    async def run() -> tuple[Step, Step]:
        await world.reset(task_of(PAPER), 0)
        called = await world.step(Action(calls=(ToolCall("calculator", {}),)))
        return called, await world.truncate()

    called, last_step = asyncio.run(run())
    assert "There are no tools here" in called.observation.messages[0].content
    assert (last_step.truncated, last_step.success) == (True, False)


def test_notations() -> None:
    for notation, text in (("words", "(x1 or x2 or not x3) and (not x1 or x3)"), ("numbers", "1 2 -3, -1 3")):
        world = SatEnvironment(notation=notation)
        assert asyncio.run(world.reset(task_of(PAPER), 0)).messages[1].content == text
    assert "-2 is not x2" in SatEnvironment(notation="numbers").system


def test_defaults_are_the_papers() -> None:
    tasks = SatEnvironment().tasks("train", 120)
    assert {task.fields["n"] for task in tasks} == set(range(10, 21))
    assert {task.fields["k"] for task in tasks} == {3, 4, 5}
    for task in tasks:
        clauses, n, k = task.fields["clauses"], task.fields["n"], task.fields["k"]
        assert len(clauses) == int(4.2 * n)
        assert all(len({abs(x) for x in clause}) == k for clause in clauses)
        assert all(1 <= abs(x) <= n for clause in clauses for x in clause)
        assert solve([tuple(clause) for clause in clauses], n) is not None
        assert "solution" not in task.fields


def test_each_widths_own_threshold_is_an_option() -> None:
    for k in (3, 4, 5):
        (task,) = SatEnvironment(ratio="threshold", n=12, k=k).tasks("val", 1)
        assert len(task.fields["clauses"]) == int(THRESHOLDS[k] * 12)
    assert SatEnvironment(levels=[5]).tasks("val", 1)[0].fields["level"] == 5


def test_unsat_formulas_are_certified_and_look_like_the_others() -> None:
    tasks = SatEnvironment(unsat=0.5, ratio="threshold", n=[10, 12], k=[3, 4]).tasks("train", 60)
    labels = [bool(task.fields["satisfiable"]) for task in tasks]
    assert 15 <= sum(labels) <= 45
    for task, label in zip(tasks, labels, strict=True):
        clauses = [tuple(clause) for clause in task.fields["clauses"]]
        assert (solve(clauses, task.fields["n"]) is not None) == label
        assert len(clauses) == int(THRESHOLDS[task.fields["k"]] * task.fields["n"])
    with pytest.raises(UserError, match="none is UNSAT; set ratio=threshold"):
        SatEnvironment(unsat=1.0, ratio=1.0, n=10, k=5).tasks("train", 1)


def test_certified_formulas_are_not_planted() -> None:
    tasks = SatEnvironment(kind="certified", n=10, k=3).tasks("train", 20)
    assert all(solve([tuple(c) for c in task.fields["clauses"]], 10) is not None for task in tasks)


def brute_force(clauses: list[tuple[int, ...]], n: int) -> bool:
    return any(
        all(any(values[abs(x) - 1] == (x > 0) for x in clause) for clause in clauses)
        for values in itertools.product((False, True), repeat=n)
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 40), st.integers(0, 2**32))
def test_checker_solver_and_brute_force_agree(n: int, k: int, count: int, seed: int) -> None:
    clauses = uniform(random.Random(seed), n, min(k, n), count)
    result = solve(clauses, n)
    assert (result is not None) == brute_force(clauses, n)
    if result is not None:
        assert all(satisfies_clause(clause, result) for clause in clauses)
        assert read_answer(write_answer(result)) == result
        assert steps(SatEnvironment(), task_of([list(c) for c in clauses]), write_answer(result))[0].success


@settings(max_examples=100, deadline=None)
@given(st.integers(3, 20), st.integers(1, 3), st.integers(1, 90), st.integers(0, 2**32))
def test_planted_formulas_can_be_satisfied(n: int, k: int, count: int, seed: int) -> None:
    clauses = formulas.planted(random.Random(seed), n, k, count)
    assert len(clauses) == count
    assert solve(clauses, n) is not None


@settings(max_examples=300, deadline=None)
@given(st.text() | st.from_regex(r"(x\d{0,12}=(True|False|1|0|x)[, ]*|UNSAT ?|\\boxed\{|```){0,8}"))
def test_no_reply_raises(text: str) -> None:
    world = SatEnvironment()
    (step,) = steps(world, task_of(PAPER), text)
    assert step.terminated or step.info["valid"] is False


def test_splits_are_disjoint_and_ids_stable() -> None:
    world = SatEnvironment(levels=[1, 3])
    results = {split: [t for seed in range(3) for t in world.tasks(split, 40, seed)] for split in SPLITS}
    keys = {
        split: {str(sorted(sorted(c) for c in task.fields["clauses"])) for task in tasks}
        for split, tasks in results.items()
    }
    assert not keys["train"] & keys["val"]
    assert not keys["train"] & keys["test"]
    assert not keys["val"] & keys["test"]
    assert [t.fields["level"] for t in results["val"][:4]] == [1, 3, 1, 3]
    assert [task.id for task in SatEnvironment().tasks("test", 2)] == [
        "affine-sat-e79279ecb9da36ae", "affine-sat-641f33bf24ff5e1a",
    ]  # fmt: skip


def test_random_policy_rarely_satisfies_the_default() -> None:
    world = SatEnvironment(k=3)
    tasks = world.tasks("train", 100)
    num_solved = sum(bool(steps(world, task, world.random(task, 0)(None).content)[0].success) for task in tasks)  # type: ignore[arg-type]
    assert num_solved <= 3


def test_levels_grow() -> None:
    sizes = [
        len(SatEnvironment(levels=[level]).tasks("train", 5)[0].fields["clauses"]) for level in (1, 2, 3)
    ]  # fmt: skip
    assert sizes == sorted(sizes)
    assert sizes[0] <= 6


def test_too_many_tasks_of_a_small_kind() -> None:
    with pytest.raises(UserError, match="ask for fewer"):
        SatEnvironment(n=3, k=1, ratio=0.5).tasks("train", 100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": [6]}, "levels must be whole numbers from 1 to 5"),
        ({"levels": []}, "levels must be whole numbers"),
        ({"reward": "native2"}, "Did you mean 'native'"),
        ({"kind": "plant"}, "Did you mean 'planted'"),
        ({"notation": "symbol"}, "Did you mean 'symbols'"),
        ({"unsat": 2}, "a share from 0 to 1"),
        ({"tries": 0}, "tries of at least 1"),
        ({"n": 3, "k": 5}, "1 <= k <= n"),
        ({"n": [20, 10]}, "smaller number first"),
        ({"n": "many"}, "whole number or a pair"),
        ({"ratio": -1}, "a ratio above 0 or 'threshold'"),
        ({"ratio": "edge"}, "a ratio above 0 or 'threshold'"),
        ({"ratio": "threshold", "k": 1}, "thresholds for k from 2"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SatEnvironment(**options)  # type: ignore[arg-type]


def test_wrong_split_and_task() -> None:
    with pytest.raises(UserError, match="has no split 'valid'"):
        SatEnvironment().tasks("valid", 1)
    with pytest.raises(UserError, match="has no 'clauses'"):
        asyncio.run(SatEnvironment().reset(Task("t", "affine:sat", "train", {}), 0))


def test_without_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pysat.solvers", None)
    with pytest.raises(UserError, match=r"practicum\[affine\]"):
        solve([(1,)], 1)
