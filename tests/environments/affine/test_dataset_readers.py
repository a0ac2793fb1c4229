from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from practicum.environment import Action
from practicum.environments.affine.abd import AbdEnvironment
from practicum.environments.affine.ded import DedEnvironment
from practicum.errors import UserError
from practicum.sandbox import base
from practicum.task import Task

R2 = {
    "prompt": "Read n and print its double.  ",
    "program": "n = int(input())\nprint(n * 2)",
    "inputs": "4\n",
    "output": "8\n",
    "verification_info": json.dumps(
        {"language": "python", "test_cases": [{"type": "stdin_stdout", "input": ["4"], "output": "8\n"}]}
    ),
}
CRUX = {"id": "sample_0", "code": "def f(xs, k):\n    return [x + k for x in xs]", "input": "[1, 2], 3",
        "output": "[4, 5]"}  # fmt: skip
HUMANEVAL = {
    "task_id": "HumanEval/0", "entry_point": "twice", "prompt": 'def twice(x):\n    """Double x."""\n',
    "canonical_solution": "    return 2 * x\n", "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}  # fmt: skip
MBPP = {"task_id": 2, "text": "Write a function to square.", "code": "def square(x):\n    return x * x",
        "test_list": ["assert square(3) == 9", "assert square(-2) == 4"]}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _needs_a_sandbox() -> None:
    try:
        base.current()
    except UserError as error:
        pytest.skip(f"isolation is NOT tested: {error}")


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def solved(world: AbdEnvironment | DedEnvironment, task: Task, reply: str | None = None) -> bool:
    async def run() -> bool:
        observation = await world.reset(task, 0)
        action = world.expert(task)(observation) if reply is None else Action(content=reply)
        return bool((await world.step(action)).success)

    return asyncio.run(run())


def test_r2_rows_serve_both(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", R2)
    abd = AbdEnvironment(files={"train": path})
    (task,) = abd.tasks("train", 9)
    assert (task.id, task.fields["input"], task.fields["output"]) == ("rows-0", "4", "8\n")
    assert solved(abd, task)
    assert not solved(abd, task, "<INPUT>5</INPUT>")
    ded = DedEnvironment(files={"train": path})
    (task,) = ded.tasks("train", 9)
    assert task.fields["question"].startswith("Read n and print its double.\n\nThe program reads standard input")
    assert "verification_info" not in task.fields
    assert solved(ded, task)
    assert not solved(ded, task, "print(int(input()) * 3)")


def test_r2_folder_of_chunks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "rl-python"
    folder.mkdir()
    listed = [{"key": "affine/datasets/rl-python/chunk-0.json"}, {"filename": "chunk-1.json"}]
    (folder / "index.json").write_text(json.dumps({"files": listed, "total_rows": 3}))
    (folder / "chunk-0.json").write_text(json.dumps([R2, {**R2, "output": "\n"}]))
    (folder / "chunk-1.json").write_text(json.dumps([{**R2, "output": "6", "inputs": ["3"]}]))
    for path in (folder, folder / "index.json"):
        tasks = AbdEnvironment(files={"val": str(path)}).tasks("val", 9)
        assert [task.fields["output"] for task in tasks] == ["8\n", "6"]
        assert tasks[1].fields["input"] == "3"
    assert "1 rows left out, its output is empty" in capsys.readouterr().err
    (folder / "chunk-1.json").unlink()
    (folder / "index.json").write_text(json.dumps({"files": listed}))
    with pytest.raises(UserError, match="There is no file"):
        AbdEnvironment(files={"val": str(folder)}).tasks("val", 9)


def test_cruxeval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = {**CRUX, "id": "sample_1", "input": "open('x')"}
    text = {
        **CRUX,
        "id": "sample_2",
        "code": "def f(s):\n    return s.upper()",
        "input": "'a\\nb'",
        "output": "'A\\nB'",
    }
    world = AbdEnvironment(files={"test": write(tmp_path / "test.jsonl", CRUX, code, text)})
    tasks = world.tasks("test", 9)
    assert [task.id for task in tasks] == ["sample_0", "sample_2"]
    assert "1 rows left out, its input is not made of literals" in capsys.readouterr().err
    assert all(solved(world, task) for task in tasks)
    assert solved(world, tasks[0], "<INPUT>[3, 4], 1</INPUT>")
    assert not solved(world, tasks[0], "<INPUT>[1], 3</INPUT>")
    # Nothing that is offered runs as code.
    assert not solved(world, tasks[0], "<INPUT>[], 0) or [4, 5] #</INPUT>")
    assert not solved(world, tasks[0], "<INPUT>[2 + 2, 5], 0 if 1 else 0</INPUT>")


def test_a_cruxeval_program_without_arguments(tmp_path: Path) -> None:
    row = {"id": "sample_134", "code": "def f():\n    return sum(range(5))", "input": "", "output": "10"}
    world = AbdEnvironment(files={"test": write(tmp_path / "test.jsonl", CRUX, row)})
    tasks = world.tasks("test", 9)
    assert [task.id for task in tasks] == ["sample_0", "sample_134"]
    assert all(solved(world, task) for task in tasks)
    assert solved(world, tasks[1], "<INPUT></INPUT>")
    assert not solved(world, tasks[1], "<INPUT>1</INPUT>")


def test_cruxeval_inputs_that_are_expressions_become_literals(tmp_path: Path) -> None:
    joined = {"id": "a", "code": "def f(s, t):\n    return s.strip(t)", "input": "'_x ', '_' + ' '", "output": "'x'"}
    named = {
        "id": "b",
        "code": "xs = [1, 2]\ndef f(ys, n):\n    return ys + [n]",
        "input": "xs[:], 3",
        "output": "[1, 2, 3]",
    }
    world = AbdEnvironment(files={"test": write(tmp_path / "test.jsonl", joined, named)})
    tasks = world.tasks("test", 9)
    assert [task.fields["input"] for task in tasks] == ["'_x ', '_ '", "[1, 2], 3"]
    assert all(solved(world, task) for task in tasks)


def test_an_input_is_never_run_as_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = "xs = [int(x) for x in eval(input())]\nprint(sum(map(eval, input().split())) + len(xs))"
    rows = [
        {"id": "a", "program": program, "inputs": "[1, 2]\n3 4*5", "output": "25"},
        {"id": "b", "program": "exec(input())\nprint(1)", "inputs": "x = 1", "output": "1"},
        {"id": "c", "program": "import builtins\nprint(builtins.eval(input()))", "inputs": "1", "output": "1"},
    ]
    world = AbdEnvironment(files={"test": write(tmp_path / "test.jsonl", *rows)})
    (task,) = world.tasks("test", 9)
    assert "2 rows left out, its program can run its input as code" in capsys.readouterr().err
    assert solved(world, task)
    assert solved(world, task, "<INPUT>(0,)\n24</INPUT>")
    for hack in (
        "print(25) or exit()",
        "__import__('os').write(1, b'25') and exit()",
        "(lambda: print(25))() or exit()",
    ):
        assert not solved(world, task, f"<INPUT>{hack}\n1</INPUT>")


def test_humaneval_and_mbpp(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(HUMANEVAL).encode()))
    world = DedEnvironment(files={"test": str(path), "val": write(tmp_path / "mbpp.jsonl", MBPP)}, reward="shaped")
    (task,) = world.tasks("test", 9)
    assert task.id == "HumanEval-0"
    assert "assert" not in task.fields["question"]
    assert solved(world, task)
    assert solved(world, task, "```python\ndef twice(x):\n    return x + x\n```")
    assert not solved(world, task, "```python\ndef twice(x):\n    return x\n```")
    (task,) = world.tasks("val", 9)
    assert task.id == "mbpp-2"
    assert solved(world, task)

    async def half() -> Any:
        await world.reset(task, 0)
        return await world.step(Action(content="def square(x):\n    return 9"))

    step = asyncio.run(half())
    assert (step.success, step.reward, step.components["passed"]) == (False, pytest.approx(0.1), 1.0)


def test_practicums_own_rows(tmp_path: Path) -> None:
    world = DedEnvironment()
    (task,) = world.tasks("train", 1)
    path = write(tmp_path / "own.jsonl", {"id": task.id, **json.loads(json.dumps(task.fields, default=dict))})
    (again,) = DedEnvironment(files={"val": path}).tasks("val", 1)
    assert (again.id, again.fields["question"]) == (task.id, task.fields["question"])
    assert again.fields["test_cases"] == task.fields["test_cases"]
    assert solved(world, again)


def test_one_file_for_several_splits_is_divided(tmp_path: Path) -> None:
    rows = [{**R2, "output": str(2 * n), "inputs": str(n)} for n in range(100)]
    path = write(tmp_path / "rows.jsonl", *rows)
    world = AbdEnvironment(files={"train": path, "val": path})
    train, val = ({task.id for task in world.tasks(split, 200)} for split in ("train", "val"))
    assert not train & val
    assert len(train) > 60
    assert len(val) > 3
    assert len(AbdEnvironment(files={"train": path}).tasks("train", 200)) == 100


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"output": "1"}], "line 1: the field 'program' is missing"),
        ([{"program": 5, "output": "1"}], "line 1: 'program' must be a non-empty text"),
        ([[1]], "row 0: expected an object, found int"),
        ([{**R2, "id": "a"}, {**R2, "id": "a"}], "line 2: the id 'a' is used twice"),
        ([{**R2, "output": ""}], "holds no task"),
        ([], "holds no task"),
    ],
)
def test_broken_files_for_abduction(tmp_path: Path, rows: list[object], message: str) -> None:
    path = write(tmp_path / "rows.jsonl", *rows)
    with pytest.raises(UserError, match=message):
        AbdEnvironment(files={"train": path}).tasks("train", 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "?"}, "its tests cannot be used: it has no list of test cases"),
        ({"prompt": "?", "verification_info": "{"}, "neither JSON nor a Python literal"),
        ({"prompt": "?", "test_cases": [{"type": "images", "input": 1, "output": 2}]}, "no test case is of a type"),
        ({"verification_info": "[]"}, "'prompt' is missing"),
        ({**MBPP, "test_list": []}, "'test_list' must be a list of asserts"),
    ],
)
def test_broken_files_for_deduction(tmp_path: Path, row: object, message: str) -> None:
    path = write(tmp_path / "rows.jsonl", row)
    with pytest.raises(UserError, match=message):
        DedEnvironment(files={"train": path}).tasks("train", 1)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UserError, match="cannot be read"):
        DedEnvironment(files={"train": "/nowhere/rows.jsonl"}).tasks("train", 1)
