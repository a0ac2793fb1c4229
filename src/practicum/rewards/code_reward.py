"""The reward of a program: the share of its tests that it passes. It runs in a sandbox and is judged outside.

`code_tests.py` says which forms a test may have. Tests that cannot be split into a call and a literal run in a second
sandbox, where the candidate's functions are stand-ins that only exchange data. A test that cannot run, whatever the
candidate is, is a judge error and never a zero; a program that takes too long has failed.
"""

from __future__ import annotations

import functools
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from practicum.errors import JudgeError, UserError
from practicum.rewards.base import reward
from practicum.rewards.code_answer import complete, extract_code, helpers
from practicum.rewards.code_tests import CodeTest, called_names, class_names, imported_modules, imports_for, read_cases
from practicum.sandbox import base
from practicum.sandbox.harness import program_text
from practicum.sandbox.limits import KIB, MIB, Limits, Reason, Result

CPU_SECONDS = 5
"""Seconds of CPU time per test; the environment's option `cpu_seconds` and a task's field of that name change it."""
CASE_OUTPUT_BYTES = 64 * KIB
JUDGE_SECONDS = 60.0
"""Seconds that the programs of one answer may run in all; less than the default deadline of a step."""
MAX_TIMEOUTS = 2
"""Number of tests that may time out before the remaining ones are skipped."""


def check_cpu_seconds(seconds: object) -> int:
    """Return a limit of processor time; UserError if it is not a whole number from 1 to 60."""
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not 1 <= seconds <= 60:
        raise UserError(f"cpu_seconds must be a whole number from 1 to 60, got {seconds}.")
    return seconds


@dataclass
class ProgramRun:
    """One answer's program, what its tests need, and the time that its runs have taken so far."""

    code: str
    setup: str
    """Imports and definitions of the task that run before each test."""
    entry_point: str | None
    prompt: str
    cpu_seconds: int
    judge_seconds: float
    seconds: float = field(default=0.0, init=False)
    num_timeouts: int = field(default=0, init=False)

    @property
    def case_seconds(self) -> float:
        """Wall seconds per test; more than the CPU time, because on a busy machine a program waits for a processor."""
        return min(3.0 * self.cpu_seconds + 2, max(self.judge_seconds - self.seconds, 0.1))

    @property
    def exhausted(self) -> bool:
        """Whether the program has used up its time, so that further tests count as failed without a run."""
        return self.num_timeouts >= MAX_TIMEOUTS or self.seconds >= self.judge_seconds

    def limits(self, num_cases: int) -> Limits:
        seconds_left = max(self.judge_seconds - self.seconds, 0.1)
        return Limits(
            wall=min(self.case_seconds * num_cases + 2, seconds_left),
            cpu=self.cpu_seconds,
            memory=256 * MIB,
            output=4 * KIB + num_cases * 8 * CASE_OUTPUT_BYTES,  # a byte may take six characters in JSON
            processes=8,
        )

    def count(self, result: Result, timed_out: bool) -> None:
        self.seconds += result.seconds
        self.num_timeouts += timed_out


@reward()
def code_reward(
    answer_given: str | None,
    test_cases: Sequence[object],
    entry_point: str | None = None,
    prompt: str = "",
    test_setup_code: str = "",
    test_imports: Sequence[str] = (),
    cpu_seconds: int = CPU_SECONDS,
    judge_seconds: float = JUDGE_SECONDS,
) -> Mapping[str, float]:
    """Return the share of test cases that the answer's program passes; solved if it passes all.

    A test may take `cpu_seconds` of processor time, all tests together `judge_seconds`.
    """
    try:
        cases = read_cases(test_cases, entry_point)
    except ValueError as error:
        raise JudgeError(str(error)) from None
    setup = "\n".join([*test_imports, test_setup_code])
    check_modules((setup, *(case.test for case in cases)))
    names = {entry_point} if entry_point else called_names(cases)
    code = "" if answer_given is None else complete(extract_code(answer_given, names), prompt, entry_point)
    passed, compiled = 0, False
    if code.strip():
        run = ProgramRun(code, setup, entry_point, prompt, cpu_seconds, min(judge_seconds, JUDGE_SECONDS))
        compiled, passed = _run_cases(run, [case for case in cases if case.inside is not None])
        for case in cases:
            if compiled and case.inside is None and not run.exhausted:
                passed += _run_test_program(run, case)
    return {
        "reward": passed / len(cases),
        "success": float(passed == len(cases)),
        "passed": float(passed),
        "cases": float(len(cases)),
        "compiled": float(compiled),
    }


def check_modules(tests: Sequence[str]) -> None:
    """Raise JudgeError if tests import a module that the sandbox does not have: they cannot run there.

    This is found without the candidate, which could otherwise make an import fail to remain unscored.
    """
    for name in sorted(imported_modules(tests) - sys.stdlib_module_names):
        if not _has_module(name):
            raise JudgeError(f"the tests import '{name}', which the sandbox does not have; leave such tasks out")


@functools.cache
def _has_module(name: str) -> bool:
    result = base.current().run_sync(f"import importlib.util\nprint(importlib.util.find_spec({name!r}) is not None)")
    return result.stdout.strip() == "True"


def _run_cases(run: ProgramRun, cases: Sequence[CodeTest]) -> tuple[bool, int]:
    """Return whether the program compiles and how many of the cases that are judged here it passes."""
    expressions = [dict(case.inside or {}) for case in cases]
    setup = f"{imports_for([case.get('call', '') for case in expressions], run.entry_point)}\n{run.setup}"
    arguments = (run.code, setup, expressions, run.case_seconds, CASE_OUTPUT_BYTES, MAX_TIMEOUTS)
    program = f"{program_text('candidate')}\ntry_cases{arguments!r}\n"
    result = base.current().run_sync(program, limits=run.limits(max(len(cases), 1)))
    first, *rest = result.stdout.splitlines() or [""]
    passed = num_timeouts = 0
    for case, line in zip(cases, rest, strict=False):  # fewer lines than cases: the remaining cases did not run
        outcome, _, output = line.partition(" ")
        assert case.judge is not None
        passed += outcome == "done" and case.judge(_text(output))
        num_timeouts += outcome == "timeout"
    run.count(result, False)
    run.num_timeouts += max(num_timeouts, int(result.reason is Reason.TIMEOUT))
    return first == "compiled", passed


def _text(output: str) -> str:
    try:
        return str(json.loads(output))
    except ValueError:
        return ""


def _run_test_program(run: ProgramRun, case: CodeTest) -> bool:
    """Return whether the candidate in one sandbox passes a test that runs in another."""
    token = secrets.token_hex(16)
    # What belongs to the problem comes from the problem: the candidate's names are replaced by these.
    source = f"{run.setup}\n{case.test}"
    setup = "\n".join((helpers(run.prompt, run.entry_point), imports_for([source], run.entry_point), run.setup))
    arguments = (setup, case.test, token, run.entry_point, class_names(source, run.prompt))
    server = f"{program_text('candidate')}\nserve({run.code!r})\n"
    client = f"{program_text('checker')}\ncheck_candidate{arguments!r}\n"
    _, result = base.current().run_connected(server, client, run.limits(1))
    run.count(result, result.reason is Reason.TIMEOUT)
    verdict = next((line.split(" ", 2)[1:] for line in result.stdout.splitlines() if line.startswith(f"{token} ")), [])
    if verdict[:1] == ["unusable"]:
        raise JudgeError(f"this test cannot be judged: {' '.join(verdict[1:])}")
    return verdict == ["pass"] and result.reason is Reason.OK
