"""`affine:abd` (abduction): given a program and what it printed, find an input for which it prints that.

The program is run in the sandbox with the input offered; any input that gives the output counts. Programs are
generated, or come from a file of R2 (`satpalsr/rl-python`) or CRUXEval rows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from practicum.environment import Action, Observation, Policy
from practicum.environments.affine import readers
from practicum.environments.affine.answers import read_input, write_input
from practicum.environments.affine.base import AffineEnvironment, Drawn, Unreadable, Verdict
from practicum.environments.affine.needs import needed_lines
from practicum.environments.affine.programs.base import WORDS
from practicum.environments.affine.programs.catalogue import LEVELS, draw_problem
from practicum.environments.affine.running import (
    CPU_SECONDS,
    Job,
    check_cpu_seconds,
    lines_agreeing,
    run_jobs_async,
    same_output,
    with_newline,
)
from practicum.errors import UserError
from practicum.sandbox import base
from practicum.task import Task

WRAPPED_FROM = 3
"""The level from which half of the programs stand in a function `solve`."""
SHOWN = 500
"""Characters of a wrong output that the agent is shown."""


class AbdEnvironment(AffineEnvironment[str]):
    """A program and its output are given; find an input that gives it."""

    name = "affine:abd"
    system = "Find an input for which the program prints the expected output. Reply <INPUT>...</INPUT>."
    once = False  # one program has many outputs

    def __init__(
        self,
        format: str = "hf",
        reward: str = "native",
        levels: Sequence[int] = (1, 2, 3, 4, 5),
        files: Mapping[str, str] | None = None,
        tries: int = 1,
        cpu_seconds: int = CPU_SECONDS,
    ) -> None:
        super().__init__(format, reward, tries, levels, max(LEVELS))
        self.files = dict(files or {})
        self.cpu_seconds = check_cpu_seconds(cpu_seconds)
        base.current()  # a machine that cannot shut programs in is known before the first episode

    def draw(self, rng: random.Random, level: int) -> Drawn:
        problem = draw_problem(rng, level)

        def make() -> dict[str, object]:
            (case,) = problem.cases(rng, 1)
            wrapped = level >= WRAPPED_FROM and rng.random() < 0.5
            return {
                "program": problem.wrapped if wrapped else problem.program,
                "output": case.output,
                "input": case.input,
                "level": level,
                "template": problem.template,
            }

        return Drawn(problem.draft.key, make)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        self.check_split(split)
        if split in self.files:
            return readers.tasks(self.files, split, self.name, readers.abduction)[:count]
        return super().tasks(split, count, seed)

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
        given = answer.splitlines()
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
