"""The reward of a program: the share of its tests that it passes. It runs in a sandbox and is judged outside.

A test case is one of
* `{"input": text, "output": text}`: the program is run with that standard input;
* `{"call": "f(1, 2)", "expected": value}`: the expression's value after the program has run;
* a text of Python with asserts, as in MBPP;
* a text that defines `check(candidate)`, as in HumanEval; the task then has an `entry_point`.

The expected values never enter the candidate's sandbox. An assert of the form `CALL == LITERAL` is split: the call
runs inside, the literal stays here. Other tests run in a second sandbox, where the candidate's functions are stand-ins
that only exchange data.
"""

from __future__ import annotations

import ast
import builtins
import json
import math
import re
import secrets
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from practicum.errors import JudgeError
from practicum.rewards.base import reward
from practicum.sandbox import base
from practicum.sandbox.harness import program_text, values
from practicum.sandbox.limits import KIB, MIB, Limits, Reason

CASE_CPU_SECONDS = 2
CASE_SECONDS = 8.0
"""Wall seconds per case; more than the CPU time, because on a busy machine a program waits for a processor."""
CASE_OUTPUT_BYTES = 64 * KIB
MAX_TOTAL_SECONDS = 60.0
FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)^[ \t]*```[ \t]*$", re.S | re.M)
PYTHON = ("python", "py", "python3")


@dataclass(frozen=True)
class Case:
    """One test: the input of the candidate's sandbox, and the judgement of its output outside."""

    inside: Mapping[str, str] | None
    """`input` or `call`; None for a test that needs a sandbox of its own."""
    judge: Callable[[str], bool] | None = None
    """Returns whether the output is right."""
    test: str = ""


def read_cases(test_cases: object, entry_point: str | None = None) -> list[Case]:
    """Parse the test cases of a task; ValueError says which one is malformed."""
    if isinstance(test_cases, str):
        test_cases = [test_cases]
    if not isinstance(test_cases, Sequence) or not test_cases:
        raise ValueError("'test_cases' must be a list with at least one test")
    return [_read_case(case, number, entry_point) for number, case in enumerate(test_cases)]


def _read_case(case: object, number: int, entry_point: str | None) -> Case:
    if isinstance(case, Mapping):
        if set(case) == {"input", "output"} and all(isinstance(text, str) for text in case.values()):
            expected_lines = lines(case["output"])
            return Case({"input": case["input"]}, lambda output: lines(output) == expected_lines)
        if set(case) == {"call", "expected"} and isinstance(case["call"], str):
            return Case({"call": case["call"]}, _judge_value(lambda value: same(value, case["expected"])))
    if isinstance(case, str):
        try:
            return _read_test(case, entry_point)
        except SyntaxError as error:
            raise ValueError(f"test case {number} is not Python: {error.msg}") from None
    raise ValueError(
        f"test case {number} must be {{input, output}}, {{call, expected}}, or a text of Python with asserts"
    )


def _read_test(text: str, entry_point: str | None) -> Case:
    tree = ast.parse(textwrap.dedent(text))
    if any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
        if not entry_point:
            raise ValueError("a test that defines check(candidate) needs the task's 'entry_point'")
        return Case(None, test=f"{ast.unparse(tree)}\ncheck(__candidate__)\n")
    if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
        raise ValueError("a test written as Python needs an assert")
    if entry_point in dir(builtins):  # the builtin of that name must not stand in for a missing candidate
        return Case(None, test=f"{entry_point} = __candidate__\n{ast.unparse(tree)}")
    if len(tree.body) == 1 and isinstance(tree.body[0], ast.Assert):
        split = _split_assert(tree.body[0].test)
        if split is not None:
            return split
    return Case(None, test=ast.unparse(tree))


def _split_assert(test: ast.expr) -> Case | None:
    """Split an assert of a call and a literal: the call runs inside, the literal stays here. None if it is another."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right, operator = test.left, test.comparators[0], test.ops[0]
        if isinstance(operator, ast.Eq | ast.Is):
            for expression, expected_side in ((left, right), (right, left)):
                if isinstance(operator, ast.Is) and not isinstance(expected_side, ast.Constant):
                    continue
                try:
                    expected = ast.literal_eval(expected_side)
                except ValueError:
                    continue
                if _is_plain_call(expression, truth=isinstance(expected, bool)):
                    return Case({"call": ast.unparse(expression)}, _judge_value(_equals(expected)))
        return None
    expected_truth = not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))
    expression = test if expected_truth else test.operand  # type: ignore[attr-defined]
    if _is_plain_call(expression, truth=True):
        return Case({"call": ast.unparse(expression)}, _judge_value(lambda value: bool(value) == expected_truth))
    return None


def _is_plain_call(expression: ast.expr, *, truth: bool) -> bool:
    """Return whether an expression only calls a function of the candidate, so that its value is judged here.

    In anything more, isclose(f(2), 1.4) say, part of the judging would run in the sandbox. Unless a truth value is
    expected, the value may be converted, len(f(2)) or list(f(2)), and arguments may be constructed, f(Node(2)).
    """
    while not truth and isinstance(expression, ast.Call) and _is_conversion_call(expression):
        expression = expression.args[0]
    if not isinstance(expression, ast.Call):
        return False
    if isinstance(expression.func, ast.Attribute):  # Solution().f(2)
        receiver = expression.func.value
        if not (
            isinstance(receiver, ast.Call)
            and _is_constructor_call(receiver)
            and not receiver.args
            and not receiver.keywords
        ):
            return False
    elif not isinstance(expression.func, ast.Name) or (truth and expression.func.id in dir(builtins)):
        return False
    within = [
        node
        for part in (*expression.args, *expression.keywords)
        for node in ast.walk(part)
        if isinstance(node, ast.Call)
    ]
    return not within if truth else all(_is_constructor_call(call) for call in within)


def _is_conversion_call(call: ast.Call) -> bool:
    by_name = isinstance(call.func, ast.Name) and call.func.id in dir(builtins)
    return by_name and len(call.args) == 1 and not call.keywords and isinstance(call.args[0], ast.Call)


def _is_constructor_call(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id[0].isupper()


def _equals(expected: object) -> Callable[[object], bool]:
    return lambda value: bool(value == expected)


def _judge_value(right: Callable[[object], bool]) -> Callable[[str], bool]:
    def judge(output: str) -> bool:
        try:
            return right(values.loads(output))
        except (ValueError, RecursionError, OverflowError):  # no output, not a value, or one that is too large
            return False

    return judge


def lines(text: str) -> list[str]:
    """Split a text into lines for comparison: trailing blanks and trailing empty lines do not count."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def same(actual: object, expected: object) -> bool:
    """Return whether two values are equal as JSON: lists equal tuples, keys are strings, floats to nine digits."""
    if isinstance(expected, float) and isinstance(actual, int | float):
        return math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-12) or (
            actual != actual and expected != expected
        )
    if isinstance(expected, int) and isinstance(actual, float):
        return math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(expected, list | tuple):
        if not isinstance(actual, list | tuple) or len(actual) != len(expected):
            return False
        return all(same(one, other) for one, other in zip(actual, expected, strict=True))
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping) or len(actual) != len(expected):
            return False
        by_name = {str(key): value for key, value in actual.items()}
        return all(str(key) in by_name and same(by_name[str(key)], value) for key, value in expected.items())
    return bool(actual == expected)


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a text with their labels; `py` and `python3` become `python`."""
    labelled = [(label.strip().lower(), body) for label, body in FENCE.findall(text.replace("\r\n", "\n"))]
    return [("python" if label in PYTHON else label, textwrap.dedent(body).strip("\n")) for label, body in labelled]


def extract_code(answer: str, names: Collection[str] = ()) -> str:
    """Return the Python block of an answer that defines most of the names; of equals the last one.

    Without a Python block, blocks without a label are considered, then all; without a block, the whole answer.
    """
    blocks = fenced_blocks(answer)
    if not blocks:
        return textwrap.dedent(answer.replace("\r\n", "\n")).strip("\n")
    labels = {label for label, _ in blocks}
    chosen_label = next((label for label in ("python", "") if label in labels), None)
    bodies = [body for label, body in reversed(blocks) if chosen_label in (label, None)]
    return max(bodies, key=lambda body: sum(_defines(body, name) for name in names))


def _defines(code: str, name: str) -> bool:
    name = re.escape(name)
    return re.search(rf"^(?:(?:async )?def|class) {name}\b|^{name} *=[^=]", code, re.M) is not None


def _called_names(cases: Sequence[Case]) -> set[str]:
    """Return the names of the functions that the tests call; builtins only if there are no others."""
    names = set()
    for case in cases:
        try:
            tree = ast.parse((case.inside or {}).get("call", case.test))
        except (SyntaxError, ValueError):
            continue
        names |= {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    return names - set(dir(builtins)) or names


def complete(code: str, prompt: str, entry_point: str | None) -> str:
    """Complete an answer with HumanEval's prompt (imports, helpers, signature); the answer may be the body alone."""
    if not prompt or not entry_point:
        return code
    if re.search(rf"^def {re.escape(entry_point)}\b", code, re.M):
        return f"{prompt}\n{code}"
    return f"{prompt}\n{textwrap.indent(code, '    ')}"


@reward()
def code_reward(
    answer_given: str | None,
    test_cases: Sequence[object],
    entry_point: str | None = None,
    prompt: str = "",
    test_setup_code: str = "",
    test_imports: Sequence[str] = (),
) -> Mapping[str, float]:
    """Return the share of test cases that the answer's program passes; solved if it passes all."""
    try:
        cases = read_cases(test_cases, entry_point)
    except ValueError as error:
        raise JudgeError(str(error)) from None
    names = {entry_point} if entry_point else _called_names(cases)
    code = "" if answer_given is None else complete(extract_code(answer_given, names), prompt, entry_point)
    passed, compiled = 0, False
    if code.strip():
        setup = "\n".join([*test_imports, test_setup_code])
        compiled, passed = _run_cases(code, setup, [case for case in cases if case.inside is not None])
        if compiled:
            passed += sum(_run_test_program(code, setup, case, entry_point) for case in cases if case.inside is None)
    return {
        "reward": passed / len(cases),
        "success": float(passed == len(cases)),
        "passed": float(passed),
        "cases": float(len(cases)),
        "compiled": float(compiled),
    }


def _limits(cases: int) -> Limits:
    wall = min(CASE_SECONDS * max(cases, 1) + 2, MAX_TOTAL_SECONDS)
    output = 4 * KIB + max(cases, 1) * 8 * CASE_OUTPUT_BYTES  # a byte may take six characters in JSON
    return Limits(wall=wall, cpu=CASE_CPU_SECONDS, memory=256 * MIB, output=output, processes=8)


def _run_cases(code: str, setup: str, cases: Sequence[Case]) -> tuple[bool, int]:
    """Return whether the program compiles and how many of the cases that are judged here it passes."""
    expression = [dict(case.inside or {}) for case in cases]
    call = f"try_cases({code!r}, {setup!r}, {expression!r}, {CASE_SECONDS!r}, {CASE_OUTPUT_BYTES!r})"
    result = base.current().run_sync(f"{program_text('candidate')}\n{call}\n", limits=_limits(len(cases)))
    first, *rest = result.stdout.splitlines() or [""]
    passed = 0
    for case, line in zip(cases, rest, strict=False):  # fewer lines than cases: the remaining cases did not run
        outcome, _, output = line.partition(" ")
        assert case.judge is not None
        passed += outcome == "done" and case.judge(_text(output))
    return first == "compiled", passed


def _text(output: str) -> str:
    try:
        return str(json.loads(output))
    except ValueError:
        return ""


def _run_test_program(code: str, setup: str, case: Case, entry_point: str | None) -> bool:
    """Return whether the candidate in one sandbox passes a test that runs in another."""
    token = secrets.token_hex(16)
    server = f"{program_text('candidate')}\nserve({code!r})\n"
    client = f"{program_text('checker')}\ncheck_candidate({setup!r}, {case.test!r}, {token!r}, {entry_point!r})\n"
    _, result = base.current().run_connected(server, client, _limits(1))
    verdict = next((line.split(" ", 2)[1:] for line in result.stdout.splitlines() if line.startswith(f"{token} ")), [])
    if verdict[:1] == ["unusable"]:
        raise JudgeError(f"this test cannot be judged: {' '.join(verdict[1:])}")
    return verdict == ["pass"] and result.reason is Reason.OK
