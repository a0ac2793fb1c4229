"""`affine:abd` (abduction): given a program and its output, find an input for which it prints that.

The program is run in the sandbox with the answer as its input; any input that gives the output is right. Programs are
generated, or come from a file of R2 (`satpalsr/rl-python`) or CRUXEval rows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.environment import Action, Observation, ScriptedPolicy
from practicum.environments.affine import dataset_readers
from practicum.environments.affine.abd_expert import work_backwards
from practicum.environments.affine.answers import read_input, write_input
from practicum.environments.affine.base import UnreadableAnswer, Verdict
from practicum.environments.affine.program_runner import (
    CPU_SECONDS,
    Job,
    matching_line_share,
    run_jobs_async,
    same_output,
    with_newline,
)
from practicum.environments.affine.program_tasks import ProgramEnvironment
from practicum.environments.affine.programs.base import WORDS
from practicum.environments.affine.programs.catalogue import Problem
from practicum.environments.affine.stdin_arity import min_input_lines
from practicum.errors import UserError, did_you_mean
from practicum.task import Task

EXPERTS = ("input", "working")
MIN_WRAPPED_LEVEL = 3
"""From this level on half of the programs are wrapped in a function `solve`."""
MAX_SHOWN_CHARS = 500
"""Number of characters of a wrong output that the agent is shown."""


WRONG_INPUT = "no such input"
EVAL = """
def eval(source, *_):
    import ast, operator
    kinds = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
             ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod}
    def value(node):
        if isinstance(node, ast.BinOp) and type(node.op) in kinds:
            return kinds[type(node.op)](value(node.left), value(node.right))
        return ast.literal_eval(node)
    return value(ast.parse(source.strip() if isinstance(source, str) else source, mode="eval").body)
"""
"""Replaces `eval` in a program: literals and arithmetic only. With the real one, an input could be a program that
prints the expected output and exits."""


class AbdEnvironment(ProgramEnvironment):
    """A program and its output are given; find an input that gives it."""

    name = "affine:abd"
    has_one_answer = False  # several inputs may give the output
    system = "Find an input for which the program prints the expected output. Reply <INPUT>...</INPUT>."
    read_row = staticmethod(dataset_readers.abduction)
    unique_keys = False  # one program has many outputs

    def __init__(
        self,
        format: str = "hf",
        reward: str = "native",
        levels: Sequence[int] = (1, 2, 3, 4, 5),
        files: Mapping[str, str] | None = None,
        tries: int = 1,
        cpu_seconds: int = CPU_SECONDS,
        expert: str = "input",
    ) -> None:
        super().__init__(format, reward, levels, files, tries, cpu_seconds)
        if expert not in EXPERTS:
            raise UserError(f"affine:abd has no expert '{expert}'.{did_you_mean(expert, EXPERTS)}")
        self.expert_kind = expert

    def fields(self, problem: Problem, rng: random.Random, level: int) -> dict[str, Any]:
        (case,) = problem.cases(rng, 1)
        wrapped = level >= MIN_WRAPPED_LEVEL and rng.random() < 0.5
        program = problem.wrapped if wrapped else problem.program
        return {"program": program, "output": case.output, "input": case.input}

    def question(self, task: Task) -> str:
        program, output = _text(task, "program"), _text(task, "output")
        return f"{program}\n\nExpected output:\n{output}"

    def read(self, text: str) -> str:
        answer = read_input(text)
        if answer is None:
            raise UnreadableAnswer("put the input between <INPUT> and </INPUT>.")
        return answer

    async def judge(self, task: Task, answer: str) -> Verdict:
        program, expected = _text(task, "program"), _text(task, "output")
        # An empty line is an input only of a program that takes no arguments.
        lines = answer.split("\n") if answer or task.fields.get("input") == "" else []
        if len(lines) < min_input_lines(program, lines[0] if lines else ""):
            return Verdict(False, 0.0, "The program reads more lines than that.", {"ran": 0.0})
        judged = f"{EVAL}\n{program}" if re.search(r"\beval\b", program) else program
        (run,) = await run_jobs_async([Job(judged, with_newline(answer))], self.cpu_seconds)
        if not run.ok:
            return Verdict(False, 0.0, f"With that input the program fails: {run.problem}", {"ran": 0.0})
        success = same_output(expected, run.output)
        text = f"With that input the program prints:\n{run.output.rstrip()[:MAX_SHOWN_CHARS]}"
        return Verdict(success, matching_line_share(expected, run.output), text, {"ran": 1.0})

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy that gives the input with which the output was made.

        `working` writes down the steps from the output to an input, where `work_backwards` knows them.
        """
        if self.expert_kind == "working":
            derivation = work_backwards(_text(task, "program"), _text(task, "output"))
            if derivation is not None:
                lines, numbers = derivation
                reply = "\n".join([*lines, write_input("\n".join(map(str, numbers)))])
                return lambda observation: Action(content=reply)
        if "input" not in task.fields:
            raise UserError(f"Task '{task.id}' has no 'input' for the expert to give; add that field.")
        answer = write_input(str(task.fields["input"]))
        return lambda observation: Action(content=answer)

    def wrong_attempts(self, task: Task, solution: Sequence[Action]) -> Sequence[Sequence[Action]]:
        """Give words to a program that reads numbers: those themselves, and the expected output among them."""
        program, output = _text(task, "program"), _text(task, "output")
        if not re.search(r"\b(int|float)\b", program):
            return ()  # words may be a right input
        lines = max(1, program.count("input()"))
        inputs = ("\n".join([WRONG_INPUT] * lines), f"{WRONG_INPUT}\n{output.rstrip()}")
        return [(Action(content=write_input(text)),) for text in inputs]

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that writes a line for every `input()`: a number, a few numbers, or a word."""
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
