"""`affine:ded` (deduction): given a problem in words, write the program.

The program is run in the sandbox on hidden test cases, all of them in one guest; it is right when it passes them
all. Problems are generated, or come from a file of R2 (`satpalsr/rl-python`), HumanEval or MBPP rows.
"""

from __future__ import annotations

import random
import re
from typing import Any

from practicum.environment import Action, Observation, Policy
from practicum.environments.affine import dataset_readers
from practicum.environments.affine.answers import read_program, write_program
from practicum.environments.affine.base import Unreadable, Verdict
from practicum.environments.affine.cases import read_cases
from practicum.environments.affine.program_tasks import ProgramEnvironment
from practicum.environments.affine.programs.catalogue import Problem
from practicum.environments.affine.running import run_jobs_async
from practicum.errors import JudgeError, UserError
from practicum.rewards.code_reward import code_reward
from practicum.sandbox.slots import in_thread_with_slots
from practicum.task import Task

CASES = 6
EXAMPLE_FROM = 3
"""The level from which a statement comes with an example."""


class DedEnvironment(ProgramEnvironment):
    """A problem in words is given; write the program, which hidden tests judge."""

    name = "affine:ded"
    system = "Write the Python program. Reply with all of it in a ```python block."
    read_row = staticmethod(dataset_readers.deduction)

    def fields(self, problem: Problem, rng: random.Random, level: int) -> dict[str, Any]:
        *cases, example = problem.cases(rng, CASES + 1)
        shown = f"\nExample input:\n{example.input}\nExample output:\n{example.output}"
        return {
            "question": problem.draft.statement + (shown if level >= EXAMPLE_FROM else ""),
            "test_cases": [{"input": case.input, "output": case.output} for case in cases],
            "solution": problem.program,
        }

    def question(self, task: Task) -> str:
        asked = task.fields.get("question")
        if not isinstance(asked, str) or not asked.strip() or not task.fields.get("test_cases"):
            raise UserError(f"Task '{task.id}' lacks 'question' or 'test_cases'; affine:ded needs both.")
        return asked

    def read(self, text: str) -> str:
        program = read_program(text)
        if not program.strip():
            raise Unreadable("there is no program in it.")
        return program

    async def judge(self, task: Task, answer: str) -> Verdict:
        cases = task.fields["test_cases"]
        if all(isinstance(case, str) for case in cases):  # tests in Python, as HumanEval and MBPP have them
            score = await in_thread_with_slots(code_reward.score, task, answer, ())
            return _verdict(round(score.components["passed"]), round(score.components["cases"]), 0)
        try:
            tests = read_cases(cases)
        except ValueError as error:
            raise JudgeError(f"task '{task.id}': {error}") from None
        ran = await run_jobs_async([test.job(answer) for test in tests], self.cpu_seconds)
        passed = sum(test.passes(run) for test, run in zip(tests, ran, strict=True))
        return _verdict(passed, len(tests), sum(not run.fine for run in ran))

    def expert(self, task: Task) -> Policy:
        """Hands in the solution."""
        if "solution" not in task.fields:
            raise UserError(f"Task '{task.id}' has no 'solution' for the expert to hand in; add that field.")
        answer = write_program(str(task.fields["solution"]))
        return lambda observation: Action(content=answer)

    def random(self, task: Task, seed: int) -> Policy:
        """Knows the protocol and nothing else: reads a number and prints something with a number of the question."""
        rng = random.Random(f"affine-ded-random/{task.id}/{seed}")
        numbers = re.findall(r"\d+", str(task.fields.get("question", ""))) or ["1"]

        def act(observation: Observation) -> Action:
            one, other = rng.choice(numbers), rng.choice(numbers)
            body = f"n {rng.choice('+-*')} {one} {rng.choice('+-*')} {other}"
            return Action(content=write_program(f"n = int(input())\nprint({body})"))

        return act


def _verdict(passed: int, total: int, broken: int) -> Verdict:
    """Counts only: what a test gives and expects stays hidden."""
    faults = f" {broken} ended in an error or too late." if broken else ""
    text = f"{passed} of {total} tests pass.{faults}"
    return Verdict(passed == total, passed / total, text, {"passed": float(passed), "cases": float(total)})
