"""`math`: word problems of several steps, with a calculator.

A problem is a short story about a count that changes. Each level adds one operation. The expert makes one calculator
call per operation and then answers, so every episode has several turns. Splits are disjoint: a hash of the question
decides the split.
"""

from __future__ import annotations

import contextlib
import math
import operator
import random
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from practicum.environment import Action, Observation, ScriptedPolicy, ToolCall
from practicum.environments.tool_agent import ToolEnvironment
from practicum.errors import UserError
from practicum.rewards.math_reward import final_answer
from practicum.task import Task, content_hash, split_of_hash
from practicum.tools.calculator import evaluate

# fmt: off
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June", "Kim", "Leo", "Mia", "Nils", "Ola",
         "Pia")
ITEMS = ("apples", "books", "coins", "shells", "cards", "stamps", "beads", "pens", "nuts", "marbles", "stones",
         "stickers")
OPENINGS = ("{name} has {n} {item}.", "{name} starts with {n} {item}.", "There are {n} {item} in the box of {name}.")
CHANGES = {
    "+": ("{name} finds {n} more.", "A friend brings {n} more.", "Then {name} buys {n} {item}."),
    "-": ("{name} gives away {n}.", "Then {n} of them get lost.", "{name} sells {n} {item}."),
    "*": ("Overnight the pile grows to {n} times its size.", "{name} gets enough to have {n} times as many.",
          "Now there are {n} boxes, each holding that many."),
    "/": ("They are split evenly into {n} bags and {name} keeps one bag.",
          "{name} shares them equally among {n} people and counts one.", "Only one out of every {n} is kept."),
}
# fmt: on
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
"""On whole numbers; a division has no remainder (`_operation`)."""
QUESTIONS = ("How many {item} are there now?", "How many {item} does {name} have in the end?")
MAX_LEVEL = 5
ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")
ANNOTATION_TOLERANCE = 0.01
"""Relative difference that an annotation may have: some are rounded."""


class MathEnvironment(ToolEnvironment):
    """Generated word problems, or any JSON file of `question`/`answer`."""

    name = "math"
    system = "Work step by step with the calculator, then give the number."
    default_tools: ClassVar[tuple[str, ...]] = ("calculator",)
    default_reward = "math_reward"

    def __init__(
        self,
        tools: Sequence[str] | None = None,
        reward: str | None = None,
        format: str = "hf",
        files: dict[str, Any] | None = None,
        system: str | None = None,
        verifier: str | None = None,
        levels: Sequence[int] = (1, 2, 3),
    ) -> None:
        super().__init__(tools, reward, format, files, system, verifier)
        self.levels = tuple(levels)
        if not self.levels or not all(isinstance(n, int) and 1 <= n <= MAX_LEVEL for n in self.levels):
            raise UserError(f"math levels must be whole numbers from 1 to {MAX_LEVEL}, got {list(levels)}.")

    def generate(self, split: str, count: int, seed: int) -> Sequence[Task]:
        rng = random.Random(f"math/{split}/{seed}")
        tasks: list[Task] = []
        seen: set[str] = set()
        while len(tasks) < count:
            fields = make_problem(rng, self.levels[len(tasks) % len(self.levels)])
            key = content_hash(fields["question"])
            if split_of_hash(key) != split or key in seen:
                continue
            seen.add(key)
            tasks.append(Task(f"math-{split}-{seed}-{len(tasks)}", self.name, split, fields))
        return tasks

    def expert(self, task: Task) -> ScriptedPolicy:
        if "steps" not in task.fields:  # from a file
            return _file_task_expert(task)
        steps, position = list(task.fields["steps"]), 0

        def act(observation: Observation) -> Action:
            nonlocal position
            if position < len(steps):
                position += 1
                return Action(calls=(ToolCall("calculator", {"expression": steps[position - 1]}),))
            return Action(content=str(task.fields["answer"]))

        return act

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that calculates with random numbers of the story, then answers."""
        rng = random.Random(f"math-random/{seed}")
        numbers = re.findall(r"\d+", str(task.fields.get("question", ""))) or ["1"]
        turns = iter(range(rng.randint(1, 3)))
        last = "0"

        def act(observation: Observation) -> Action:
            nonlocal last
            numbers_shown = re.findall(
                r"-?\d+(?:\.\d+)?", observation.messages[-1].content if observation.messages else ""
            )
            last = numbers_shown[-1] if numbers_shown else last
            if next(turns, None) is None:
                return Action(content=last)
            expression = f"{rng.choice(numbers)}{rng.choice('+-*/')}{rng.choice(numbers)}"
            return Action(calls=(ToolCall("calculator", {"expression": expression}),))

        return act


def _file_task_expert(task: Task) -> ScriptedPolicy:
    """Return the expert of a task from a file: it makes the calculations that the solution annotates, then answers.

    Without usable annotations it only answers: a call that calculates nothing would be a bad example.
    """
    gold = task.fields["answer"]
    answer = str(gold if isinstance(gold, str | int | float) else gold[0])
    expressions = annotated_expressions(str(task.fields.get("solution", answer)))
    calls = iter([Action(calls=(ToolCall("calculator", {"expression": text}),)) for text in expressions])
    return lambda observation: next(calls, Action(content=final_answer(answer)[0]))


def annotated_expressions(solution: str) -> list[str]:
    """Return the calculations of a solution in GSM8K's notation, `<<16-3-4=9>>`, that the calculator can make.

    One whose value is not what the annotation says is left out.
    """
    expressions = []
    for left, right in ANNOTATION.findall(solution):
        text = re.sub(r"[\s,$]", "", left)
        with contextlib.suppress(ValueError):
            if math.isclose(evaluate(text), evaluate(re.sub(r"[\s,$]", "", right)), rel_tol=ANNOTATION_TOLERANCE):
                expressions.append(text)
    return expressions


def make_problem(rng: random.Random, level: int) -> dict[str, object]:
    """Return a story with `level` operations, its steps as expressions, and its answer."""
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    value = rng.randint(2, 99)
    text = [rng.choice(OPENINGS).format(name=name, n=value, item=item)]
    steps: list[str] = []
    for _ in range(level):
        sign, operand = _operation(rng, value)
        steps.append(f"{value}{sign}{operand}")
        value = OPERATORS[sign](value, operand)
        text.append(rng.choice(CHANGES[sign]).format(name=name, n=operand, item=item))
    text.append(rng.choice(QUESTIONS).format(name=name, item=item))
    return {"question": " ".join(text), "answer": str(value), "steps": steps, "level": level}


def _operation(rng: random.Random, value: int) -> tuple[str, int]:
    """Return an operation that keeps the count an integer from 1 to 999."""
    while True:
        sign = rng.choice("+-*/")
        if sign == "+" and value < 900:
            return "+", rng.randint(2, 99)
        if sign == "-" and value > 3:
            return "-", rng.randint(2, min(value - 1, 99))
        if sign == "*" and value <= 99:
            return "*", rng.randint(2, min(9, 999 // value))
        if sign == "/":
            divisors = [d for d in range(2, 10) if value % d == 0]
            if divisors:
                return "/", rng.choice(divisors)
