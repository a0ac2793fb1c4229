"""`affine:abd` (abduction): given a program and what it printed, find an input for which it prints that.

The program is run in the sandbox with the input offered; any input that gives the output counts. Programs are
generated, or come from a file of R2 (`satpalsr/rl-python`) or CRUXEval rows.
"""

from __future__ import annotations

import random
from typing import Any

from practicum.environment import Action, Observation, Policy
from practicum.environments.affine import dataset_readers
from practicum.environments.affine.answers import read_input, write_input
from practicum.environments.affine.base import Unreadable, Verdict
from practicum.environments.affine.program_tasks import ProgramEnvironment
from practicum.environments.affine.programs.base import WORDS
from practicum.environments.affine.programs.catalogue import Problem
from practicum.environments.affine.running import (
    Job,
    lines_agreeing,
    run_jobs_async,
    same_output,
    with_newline,
)
from practicum.environments.affine.stdin_arity import needed_lines
from practicum.errors import UserError
from practicum.task import Task

WRAPPED_FROM = 3
"""The level from which half of the programs stand in a function `solve`."""
SHOWN = 500
"""Characters of a wrong output that the agent is shown."""


class AbdEnvironment(ProgramEnvironment):
    """A program and its output are given; find an input that gives it."""

    name = "affine:abd"
    system = "Find an input for which the program prints the expected output. Reply <INPUT>...</INPUT>."
    read_row = staticmethod(dataset_readers.abduction)
    once = False  # one program has many outputs

    def fields(self, problem: Problem, rng: random.Random, level: int) -> dict[str, Any]:
        (case,) = problem.cases(rng, 1)
        wrapped = level >= WRAPPED_FROM and rng.random() < 0.5
        program = problem.wrapped if wrapped else problem.program
        return {"program": program, "output": case.output, "input": case.input}

    def question(self, task: Task) -> str:
        program, output = _text(task, "program"), _text(task, "output")
        return f"{program}\n\nExpected output:\n{output}"

    def read(self, text: str) -> str:
        offered = read_input(text)
        if offered is None:
            raise Unreadable("put the input between <INPUT> and </INPUT>.")
        return offered

    async def judge(self, task: Task, answer: str) -> Verdict:
        program, expected = _text(task, "program"), _text(task, "output")
        given = answer.split("\n") if answer else []
        if len(given) < needed_lines(program, given[0] if given else ""):
            return Verdict(False, 0.0, "The program reads more lines than that.", {"ran": 0.0})
        (ran,) = await run_jobs_async([Job(program, with_newline(answer))], self.cpu_seconds)
        if not ran.fine:
            return Verdict(False, 0.0, f"With that input the program fails: {ran.fault}", {"ran": 0.0})
        success = same_output(expected, ran.output)
        text = f"With that input the program prints:\n{ran.output.rstrip()[:SHOWN]}"
        return Verdict(success, lines_agreeing(expected, ran.output), text, {"ran": 1.0})

    def expert(self, task: Task) -> Policy:
        """Knows the input that the output was made with."""
        if "input" not in task.fields:
            raise UserError(f"Task '{task.id}' has no 'input' for the expert to give; add that field.")
        answer = write_input(str(task.fields["input"]))
        return lambda observation: Action(content=answer)

    def random(self, task: Task, seed: int) -> Policy:
        """Knows the protocol and nothing else: a line for every `input()`, with a number, a few, or a word."""
        rng = random.Random(f"affine-abd-random/{task.id}/{seed}")
        program = _text(task, "program")

        def line() -> str:
            if "split()" in program:
                return " ".join(str(rng.randint(0, 20)) for _ in range(rng.randint(1, 4)))
            return str(rng.randint(-20, 99)) if "int(" in program else rng.choice(WORDS)

        def act(observation: Observation) -> Action:
            return Action(content=write_input("\n".join(line() for _ in range(max(1, program.count("input()"))))))

        return act


def _text(task: Task, name: str) -> str:
    value = task.fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"Task '{task.id}' has no text '{name}'; affine:abd needs 'program' and 'output'.")
    return value
