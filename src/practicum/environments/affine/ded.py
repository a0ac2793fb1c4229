"""`affine:ded` (deduction): given a problem in words, write the program.

The program is run in one sandbox on all hidden test cases; it is right if it passes them all. Problems are generated,
or come from a file of R2 (`satpalsr/rl-python`), HumanEval or MBPP rows.
"""

from __future__ import annotations

import random
import re
from typing import Any

from practicum.environment import Action, Observation, ScriptedPolicy
from practicum.environments.affine import dataset_readers
from practicum.environments.affine.answers import read_program, write_program
from practicum.environments.affine.base import UnreadableAnswer, Verdict
from practicum.environments.affine.program_runner import run_jobs_async
from practicum.environments.affine.program_tasks import ProgramEnvironment
from practicum.environments.affine.programs.catalogue import Problem
from practicum.environments.affine.test_cases import read_cases
from practicum.errors import JudgeError, UserError
from practicum.rewards.code_reward import CPU_SECONDS, JUDGE_SECONDS, code_reward
from practicum.task import Task
from practicum.utils.concurrency import agent_time, in_thread_with_slots, judge_seconds

NUM_CASES = 6
MIN_EXAMPLE_LEVEL = 3
"""From this level on a statement includes an example."""


class DedEnvironment(ProgramEnvironment):
    """A problem in words is given; write the program, which hidden tests judge."""

    name = "affine:ded"
    system = "Write the Python program. Reply with all of it in a ```python block."
    read_row = staticmethod(dataset_readers.deduction)

    def fields(self, problem: Problem, rng: random.Random, level: int) -> dict[str, Any]:
        *cases, example = problem.cases(rng, NUM_CASES + 1)
        example_text = f"\nExample input:\n{example.input}\nExample output:\n{example.output}"
        return {
            "question": problem.draft.statement + (example_text if level >= MIN_EXAMPLE_LEVEL else ""),
            "test_cases": [{"input": case.input, "output": case.output} for case in cases],
            "solution": problem.program,
        }

    def question(self, task: Task) -> str:
        question = task.fields.get("question")
        if not isinstance(question, str) or not question.strip() or not task.fields.get("test_cases"):
            raise UserError(f"Task '{task.id}' lacks 'question' or 'test_cases'; affine:ded needs both.")
        return question

    def read(self, text: str) -> str:
        program = read_program(text)
        if not program.strip():
            raise UnreadableAnswer("there is no program in it.")
        return program

    async def judge(self, task: Task, answer: str) -> Verdict:
        cases = task.fields["test_cases"]
        if all(isinstance(case, str) for case in cases):  # tests in Python, as in HumanEval and MBPP
            limits = {"cpu_seconds": max(self.cpu_seconds, CPU_SECONDS), "judge_seconds": judge_seconds(JUDGE_SECONDS)}
            with agent_time():
                score = await in_thread_with_slots(code_reward.with_arguments(limits).score, task, answer, ())
            return _verdict(round(score.components["passed"]), round(score.components["cases"]), 0)
        try:
            tests = read_cases(cases)
        except ValueError as error:
            raise JudgeError(f"task '{task.id}': {error}") from None
        runs = await run_jobs_async([test.job(answer) for test in tests], self.cpu_seconds)
        passed = sum(test.passes(run) for test, run in zip(tests, runs, strict=True))
        return _verdict(passed, len(tests), sum(not run.ok for run in runs))

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy that gives the solution."""
        if "solution" not in task.fields:
            raise UserError(f"Task '{task.id}' has no 'solution' for the expert to hand in; add that field.")
        answer = write_program(str(task.fields["solution"]))
        return lambda observation: Action(content=answer)

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that writes programs of one number from the input and two from the question."""
        rng = random.Random(f"affine-ded-random/{task.id}/{seed}")
        numbers = re.findall(r"\d+", str(task.fields.get("question", ""))) or ["1"]

        def act(observation: Observation) -> Action:
            first, second = rng.choice(numbers), rng.choice(numbers)
            body = f"n {rng.choice('+-*')} {first} {rng.choice('+-*')} {second}"
            return Action(content=write_program(f"n = int(input())\nprint({body})"))

        return act


def _verdict(passed: int, total: int, num_failed: int) -> Verdict:
    """Return a verdict with counts only: inputs and expected outputs of the tests stay hidden."""
    failures = f" {num_failed} ended in an error or too late." if num_failed else ""
    text = f"{passed} of {total} tests pass.{failures}"
    return Verdict(passed == total, passed / total, text, {"passed": float(passed), "cases": float(total)})
