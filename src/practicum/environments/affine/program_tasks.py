"""The common base of `affine:abd` and `affine:ded`: programs, generated or from files, run in the sandbox."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.data.convert_rows import Row
from practicum.environments.affine import dataset_readers
from practicum.environments.affine.base import AffineEnvironment, TaskDraft
from practicum.environments.affine.program_runner import CPU_SECONDS
from practicum.environments.affine.programs.catalogue import LEVELS, Problem, draw_problem
from practicum.rewards.code_reward import check_cpu_seconds
from practicum.sandbox import base
from practicum.task import Task


class ProgramEnvironment(AffineEnvironment[str]):
    """A question about a program; a subclass defines what is shown and what must be found."""

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
        base.current()  # a machine without a sandbox is an error before the first episode

    def draw(self, rng: random.Random, level: int) -> TaskDraft:
        problem = draw_problem(rng, level)

        def make() -> dict[str, Any]:
            return {**self.fields(problem, rng, level), "level": level, "template": problem.template}

        return TaskDraft(problem.draft.key, make)

    @staticmethod
    def read_row(row: Mapping[str, Any], index: int) -> Row:
        """Return a task's fields from a row of a file."""
        raise NotImplementedError

    def fields(self, problem: Problem, rng: random.Random, level: int) -> dict[str, Any]:
        """Return a task's fields from a generated problem."""
        raise NotImplementedError

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        self.check_split(split)
        if split in self.files:
            return dataset_readers.tasks(self.files, split, self.name, self.read_row)[:count]
        return super().tasks(split, count, seed)
