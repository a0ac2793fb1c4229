"""`code`: write a small Python function, test it in a sandbox, submit it.

Problems are generated from templates (`code_problems.py`). A JSON file of `question` and `test_cases` works too, in the
forms that `code_reward` reads, among them the fields of MBPP and HumanEval.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from practicum.environment import Action, Observation, ScriptedPolicy, ToolCall
from practicum.environments.code_problems import TEMPLATES, draw_problem, make_fields
from practicum.environments.tool_agent import ToolEnvironment
from practicum.errors import UserError
from practicum.rewards.code_reward import CPU_SECONDS, check_cpu_seconds
from practicum.rewards.code_tests import read_cases
from practicum.sandbox import base
from practicum.task import Task, split_of_content

EXECUTORS = ("python_executor", "code_interpreter")
SOLUTIONS = ("solution", "code", "canonical_solution")
"""Fields of a task file that may hold a solution for the expert."""
MAX_FAILED_DRAWS = 1000
"""Number of draws in a row without a new problem after which the levels count as exhausted."""


class CodeEnvironment(ToolEnvironment):
    """Small Python functions to write and test, or any JSON file of `question`/`test_cases`."""

    name = "code"
    has_one_answer = False  # another program may pass the tests
    formats = ("code", "hf", "react")
    system = "Write the Python function. Try it first, then hand it in."
    default_tools: ClassVar[tuple[str, ...]] = ("python_executor",)
    default_reward = "code_reward"

    def __init__(
        self,
        tools: Sequence[str] | None = None,
        reward: str | None = None,
        format: str = "code",
        files: dict[str, Any] | None = None,
        system: str | None = None,
        verifier: str | None = None,
        levels: Sequence[int] = (1, 2),
        sandbox_level: str | None = None,
        cpu_seconds: int = CPU_SECONDS,
    ) -> None:
        """Create the environment. `cpu_seconds` is the processor time that a program may take per test."""
        super().__init__(tools, reward, format, files, system, verifier)
        self.reward = self.reward.with_arguments({"cpu_seconds": check_cpu_seconds(cpu_seconds)})
        self.levels = tuple(levels)
        if not self.levels or not all(level in TEMPLATES for level in self.levels):
            raise UserError(f"code levels must be whole numbers from 1 to {max(TEMPLATES)}, got {list(levels)}.")
        if sandbox_level is not None:
            base.settings = base.Settings(sandbox_level)
        base.current()  # a machine without a sandbox is an error before the first episode

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        tasks = super().tasks(split, count, seed)
        if split in self.files and self.reward.name == self.default_reward:
            for task in tasks:
                try:
                    read_cases(task.fields.get("test_cases"), task.fields.get("entry_point"))
                except ValueError as error:
                    raise UserError(f"Dataset '{self.files[split]}', task '{task.id}': {error}.") from None
        return tasks

    def generate(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Return generated problems. The program, not its names, decides the split.

        Tasks of val and test are different programs, as long as there are some; then other names make another task.
        """
        rng = random.Random(f"code/{split}/{seed}")
        tasks: list[Task] = []
        seen: set[str] = set()
        exhausted = set(self.levels) if split == "train" else set()
        num_failed_draws = 0
        while len(tasks) < count:
            level = self.levels[len(tasks) % len(self.levels)]
            problem = draw_problem(rng, level)
            key = problem.question if level in exhausted else problem.key
            is_new = split_of_content(problem.key) == split and seen.isdisjoint((key, problem.question))
            fields = make_fields(problem, rng) if is_new else None
            if fields is None:
                num_failed_draws += 1
                if num_failed_draws > MAX_FAILED_DRAWS and level not in exhausted:
                    exhausted.add(level)
                    num_failed_draws = 0
                elif num_failed_draws > MAX_FAILED_DRAWS:
                    raise UserError(
                        f"code has about {len(tasks)} different '{split}' problems of these levels; ask for fewer."
                    )
                continue
            num_failed_draws = 0
            seen |= {problem.key, problem.question}
            tasks.append(Task(f"code-{split}-{seed}-{len(tasks)}", self.name, split, fields))
        return tasks

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy that runs the solution on an example, then submits it."""
        solution = next((str(task.fields[key]) for key in SOLUTIONS if key in task.fields), None)
        if solution is None:
            raise UserError(f"Task '{task.id}' has no 'solution' for the expert to hand in; add that field.")
        example = str(task.fields.get("example", ""))
        trial = f"{solution}\nprint({example})" if example else solution
        replies = iter((Action(calls=(ToolCall(self._executor(), {"code": trial}),)),))
        return lambda observation: next(replies, Action(content=solution))

    def wrong_attempts(self, task: Task, solution: Sequence[Action]) -> Sequence[Sequence[Action]]:
        """A function of the right name that returns a text which no test expects, and one that raises."""
        defined = re.findall(r"^def (\w+)", solution[-1].content, re.M)
        name = task.fields.get("entry_point") or (defined[-1] if defined else None)
        if name is None:
            return ()
        head = f"def {name}(*arguments, **options):\n    "
        return [(Action(content=head + body),) for body in ("return 'no such value'", "raise ValueError('wrong')")]

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that submits a random function of the right name."""
        rng = random.Random(f"code-random/{seed}")
        question = str(task.fields.get("question", ""))
        head = re.search(r"(\w+)\(([\w, ]+)\)", question)
        name, arguments = head.groups() if head else ("f", "x")
        numbers = re.findall(r"\d+", question) or ["1"]
        body = f"{arguments.split(',')[0]} {rng.choice('+-*%')} {rng.choice(numbers)}"
        code = f"def {name}({arguments}):\n    return {body}"
        turns = iter(range(rng.randint(0, 2)))

        def act(observation: Observation) -> Action:
            if next(turns, None) is None:
                return Action(content=code)
            return Action(calls=(ToolCall(self._executor(), {"code": code}),))

        return act

    def _executor(self) -> str:
        return next((name for name in EXECUTORS if name in self.tools), EXECUTORS[0])
