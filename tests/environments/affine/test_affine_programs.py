from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.environments.affine.answers import read_input, read_program, write_input, write_program
from practicum.environments.affine.program_runner import Job, RunResult, matching_line_share, run_jobs, same_output
from practicum.environments.affine.programs.catalogue import LEVELS, Problem, draw_problem
from practicum.environments.affine.stdin_arity import min_input_lines
from practicum.errors import UserError
from practicum.sandbox import base

BATCH = 100
ALL = [(level, template) for level, templates in LEVELS.items() for template in templates]


@pytest.fixture
def _needs_a_sandbox() -> None:
    try:
        base.current()
    except UserError as error:
        pytest.skip(f"isolation is NOT tested: {error}")


def problems(tag: str) -> list[Problem]:
    """One problem of every template."""
    return [draw_problem(random.Random(f"{tag}/{t.__name__}"), level, t) for level, t in ALL]


def in_batches(jobs: list[Job]) -> list[RunResult]:
    return [result for start in range(0, len(jobs), BATCH) for result in run_jobs(jobs[start : start + BATCH])]


def test_there_are_many_templates() -> None:
    names = [template.__name__ for _, template in ALL]
    assert len(names) == len(set(names)) >= 60
    assert sorted(LEVELS) == [1, 2, 3, 4, 5]
    assert all(len(templates) >= 10 for templates in LEVELS.values())


@pytest.mark.usefixtures("_needs_a_sandbox")
def test_every_template_prints_what_its_reference_says() -> None:
    """Programs run in the sandbox, references here; they are written apart."""
    jobs, expected = [], []
    for number, problem in enumerate(problems("golden")):
        for case in problem.cases(random.Random(number), 2):
            jobs.append(Job(problem.wrapped if number % 2 else problem.program, case.input + "\n"))
            expected.append(case.output)
    assert len(jobs) == 2 * len(ALL)
    for job, results, output in zip(jobs, in_batches(jobs), expected, strict=True):
        assert results.ok, (job, results)
        assert same_output(output, results.output), (job, results, output)


def test_every_template_has_different_problems_and_cases() -> None:
    for level, template in ALL:
        rng = random.Random(template.__name__)
        drawn = [draw_problem(rng, level, template) for _ in range(40)]
        assert len({problem.draft.key for problem in drawn}) >= 15, template.__name__
        for problem in drawn[:5]:
            cases = problem.cases(rng, 7)
            assert len({case.input for case in cases}) == 7, problem
            assert len({case.output for case in cases}) >= 2, problem  # a constant answer does not pass
            assert all(case.output.strip() for case in cases)
            assert all(case.input == case.input.strip() for case in cases)  # so that tags around it lose nothing
            assert min_input_lines(problem.program, cases[0].input.splitlines()[0]) <= len(cases[0].input.splitlines())
            compile(problem.program, "<program>", "exec")


def test_the_key_does_not_depend_on_names() -> None:
    for level, template in ALL:
        keys = set()
        for number in range(30):
            draft = draw_problem(random.Random(number), level, template).draft
            for name in draft.shape.names:
                assert f"#{draft.shape.names.index(name)}" in draft.key, (template.__name__, draft.key)
            keys.add(draft.key)
        assert not any(f" {name} " in f" {key} " for key in keys for name in ("n", "xs", "s")), template.__name__


def test_level_1_is_short() -> None:
    for number in range(200):
        problem = draw_problem(random.Random(number), 1)
        assert len(problem.draft.statement) < 100
        assert len(problem.program.splitlines()) <= 3


@pytest.mark.usefixtures("_needs_a_sandbox")
def test_the_runner() -> None:
    jobs = [
        Job("def solve():\n    print(int(input()) * 2)", "5\n"),  # defined and never called: called for it
        Job("def solve():\n    print(1)\nsolve()", ""),
        Job("def solve():\n    print(1)\nif __name__ == '__main__':\n    solve()", ""),
        Job("def solve(x):\n    print(x)", ""),
        Job("import sys\nprint('said')\nsys.exit(3)", ""),
        Job("import sys\nprint('out')\nprint('oops', file=sys.stderr)", ""),
        Job("print(1)\n1 / 0", ""),
        Job("print(", ""),
        Job("import os\nos.kill(os.getpid(), 9)", ""),
        Job("print('\" \"' + chr(10) + '€')", ""),
        Job("print('x' * 3_000_000)", ""),
        Job("import os\nos.close(1)\nos.close(2)", ""),
        Job("print(input())", "a\r\nb\n"),
        Job("import os\nprint(os.listdir('.'))", "hidden?"),
        Job("import threading, time\nthreading.Timer(0.05, lambda: print('late')).start()", ""),
        Job("import atexit\natexit.register(print, 'bye')", ""),
        Job("import sys\nprint('so far')\nsys.stdout.close()", ""),
        Job("import sys, io\nprint('seen')\nsys.stdout = io.StringIO()\nprint('unseen')", ""),
    ]
    results = run_jobs(jobs)
    assert [run.output.strip() for run in results[:3]] == ["10", "1", "1"]
    assert results[3] == RunResult("done", "", "")
    assert (results[4].ok, results[4].output) == (True, "said\n")  # the exit status does not count
    assert (results[5].ok, results[5].error) == (False, "oops\n")
    assert (results[6].ok, results[6].output, results[6].problem) == (
        False,
        "1\n",
        "ZeroDivisionError: division by zero",
    )
    assert "SyntaxError" in results[7].problem
    assert (results[8].outcome, results[8].problem) == ("killed", "it was killed")
    assert results[9].output == '" "\n€\n'
    assert (results[10].outcome, results[10].problem) == ("output", "it printed too much")
    assert results[11].output == ""
    assert results[12].output.strip() == "a"
    assert results[13].output.strip() == "[]"
    assert [run.output for run in results[14:]] == ["late\n", "bye\n", "so far\n", "seen\n"]
    assert all(run.ok for run in results[14:])


@pytest.mark.usefixtures("_needs_a_sandbox")
def test_a_run_that_takes_too_long_ends_the_batch() -> None:
    slow, skipped = run_jobs([Job("while True: pass", ""), Job("print(1)", "")], cpu_seconds=1)
    assert (slow.outcome, slow.problem, skipped.outcome) == ("timeout", "it took too long", "skipped")


@pytest.mark.usefixtures("_needs_a_sandbox")
def test_a_program_cannot_write_anothers_result() -> None:
    hostile = (
        "import os\n"
        "for end in range(3, 64):\n"
        '    try:\n        os.write(end, b\'done ["42", ""]\\n\')\n    except OSError:\n        pass\n'
        'print(\'done ["42", ""]\')'
    )
    first, second = run_jobs([Job(hostile, ""), Job("print(7)", "")])
    assert first.output == 'done ["42", ""]\n'
    assert second == RunResult("done", "7\n", "")


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("10", "10\n", True),
        ("10\n", "10", True),
        ("a\r\nb", "a\nb\n", True),
        ("a  \nb", "a\nb", True),
        ("\n a", " a", True),
        ("a\nb", "a b", False),
        ("a\n\nb", "a\nb", False),
        ("10", "1 0", False),
        ("", "\n", True),
    ],
)
def test_outputs_are_compared(expected: str, actual: str, same: bool) -> None:
    assert same_output(expected, actual) is same


def test_lines_agreeing() -> None:
    assert matching_line_share("1\n2\n3\n4", "1\n2\n0\n4\n") == 0.75
    assert matching_line_share("1", "1\n2") == 0.5


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("<INPUT>\n5\n</INPUT>", "5"),
        ("<INPUT>5</INPUT>", "5"),
        ("no: <INPUT>4</INPUT> yes: <input>\n3  \n7\n\n\n</input> done", "3  \n7"),
        ("<INPUT>\n\n5\n</INPUT>", "\n5"),
        ("<INPUT>\n  a \n  \n  </INPUT>", "  a "),
        ("<INPUT>\r\na\u2028b\r\nc\r\n</INPUT>", "a\u2028b\nc"),
        ("<think><INPUT>1</INPUT></think><INPUT>2</INPUT>", "2"),
        ("<INPUT>2</INPUT><thinking>or <INPUT>1</INPUT></thinking>", "2"),
        ("<INPUT></INPUT>", ""),
        ("I say <INPUT> and then <INPUT>9</INPUT>", "9"),
        ("5", None),
        ("<INPUT>5", None),
        ("", None),
    ],
)
def test_inputs_in_replies(reply: str, expected: str | None) -> None:
    assert read_input(reply) == expected


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("```python\nprint(1)\n```\nor\n```python\nprint(2)\n```\nIt prints\n```\n2\n```", "print(2)"),
        ("```\nprint(3)\n```", "print(3)"),
        ("```text\n1\n```\n```py\nprint(4)\n```", "print(4)"),
        ("```py\nprint(4)\n```\nIt prints\n```\n4\n```", "print(4)"),
        ("```python3\nprint(4)\n```\nIt prints\n```\n4\n```", "print(4)"),
        ("```python\r\nprint(4)\r\n```\r\n", "print(4)"),
        ("print(5)", "print(5)"),
        ("<think>```python\nprint(0)\n```</think>print(6)", "print(6)"),
        ("  ```python\n  if 1:\n      print(7)\n  ```", "if 1:\n    print(7)"),
        ("", ""),
    ],
)
def test_programs_in_replies(reply: str, expected: str) -> None:
    assert read_program(reply) == expected


@settings(max_examples=300, deadline=None)
@given(st.text() | st.from_regex(r"(</?INPUT>|</?think>|```(python)?\n?|\n|print\(1\)|[ab ]){0,12}"))
def test_reading_never_raises(text: str) -> None:
    read_input(text)
    read_program(text)
    assert min_input_lines(text, text) >= 0
    if read_input(text) is not None:
        assert read_input(write_input(read_input(text) or "")) == read_input(text)
    if "`" not in text:
        assert read_program(write_program("x = 1\n" + read_program("y = 2"))) == "x = 1\ny = 2"


@pytest.mark.parametrize(
    ("program", "first", "lines"),
    [
        ("x = int(input())\nprint(x * 2)", "1", 1),
        ("def solve():\n    x = int(input())\n    print(x + int(input()))", "1", 2),
        ("for _ in range(int(input())):\n    print(input())", "3", 4),
        ("for _ in range(int(input())):\n    print(input())", "many", 1),
        ("for _ in range(int(input())):\n    if input():\n        print(1)", "3", 1),
        ("n = input()\nif n == '1':\n    input()", "1", 1),
        ("xs = [input() for _ in range(int(input()))]", "9", 1),
        ("a = input() or input()", "1", 1),
        ("import sys\ninput = sys.stdin.readline\nprint(input(), input())", "1", 0),
        ("try:\n    input()\nexcept EOFError:\n    pass", "1", 0),
        ("import sys\nsys.exit(0)\ninput()", "1", 0),
        ("def solve():\n    if input():\n        return\n    input()", "1", 0),
        ("def ask():\n    return input()\nprint(1)", "1", 0),
        ("not python (", "1", 0),
        ("for _ in range(int(input())):\n    input()", "9" * 5000, 1),
    ],
)
def test_lines_that_a_program_is_sure_to_read(program: str, first: str, lines: int) -> None:
    assert min_input_lines(program, first) == lines
