"""Hidden tests of a program: standard input and output, or a call of a function."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.environments.affine.program_runner import Job, RunResult, same_output, stdin_text, with_newline

KINDS = ("stdin_stdout", "function_call")


@dataclass(frozen=True, slots=True)
class TestCase:
    """The input of a program and the outputs that are right; those stay outside the sandbox."""

    stdin: str
    expected: tuple[str, ...]
    suffix: str = ""
    """Lines that are appended to the program: the call of a function."""

    def job(self, program: str) -> Job:
        return Job(f"{program}\n{self.suffix}" if self.suffix else program, self.stdin)

    def passes(self, result: RunResult) -> bool:
        return result.ok and any(same_output(expected, result.output) for expected in self.expected)


def read_verification(value: object) -> list[Mapping[str, Any]]:
    """Return the cases of a row's `verification_info` or `test_cases`: JSON or Python text, or data.

    ValueError says what is wrong with it.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            try:
                value = ast.literal_eval(str(value))
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                raise ValueError("it is neither JSON nor a Python literal") from None
    if isinstance(value, Mapping):
        value = value.get("test_cases")
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ValueError("it has no list of test cases")
    if not all(isinstance(case, Mapping) for case in value):
        raise ValueError("a test case is not an object")
    return list(value)


def read_cases(cases: Sequence[Mapping[str, Any]]) -> list[TestCase]:
    """Parse the cases of a supported type; ValueError if there is none or one is malformed."""
    read = [_read_case(case) for case in cases if case.get("type", KINDS[0]) in KINDS]
    if not read:
        raise ValueError(f"no test case is of a type that can be run ({', '.join(KINDS)})")
    return read


def _read_case(case: Mapping[str, Any]) -> TestCase:
    if "output" not in case:
        raise ValueError("a test case has no 'output'")
    expected = case["output"]
    if case.get("type", KINDS[0]) == "stdin_stdout":
        return TestCase(with_newline(stdin_text(case.get("input", ""))), (stdin_text(expected),))
    name, arguments = case.get("fn_name"), case.get("input", ())
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError("a test case of type function_call has no 'fn_name'")
    if not isinstance(arguments, list | tuple):
        raise ValueError(f"the 'input' of a call of {name} is not a list of arguments")
    value = expected[0] if isinstance(expected, list | tuple) and len(expected) == 1 else expected
    stdin = ", ".join(repr(_plain(argument)) for argument in arguments)
    suffix = f"if __name__ == '__main__':\n    print({name}({stdin}))\n"
    # A row holds JSON and a program prints Python: both true and True are right.
    return TestCase("", tuple(dict.fromkeys((stdin_text(value), str(_plain(value))))), suffix)


def _plain(value: Any) -> Any:
    """Convert the read-only mappings and tuples of a task's fields to dicts and lists."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
