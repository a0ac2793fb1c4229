"""What `affine:abd` and `affine:ded` share: programs, from the generator or a user's files, run in the sandbox."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.data.convert import Row
from practicum.environments.affine import dataset_readers
from practicum.environments.affine.base import AffineEnvironment, Drawn
from practicum.environments.affine.programs.catalogue import LEVELS, Problem, draw_problem
from practicum.environments.affine.running import CPU_SECONDS, check_cpu_seconds
from practicum.sandbox import base
from practicum.task import Task


class ProgramEnvironment(AffineEnvironment[str]):
    """A question about a program; a subclass says what of it is shown, and what is to be found."""

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

        def make() -> dict[str, Any]:
            return {**self.fields(problem, rng, level), "level": level, "template": problem.template}

        return Drawn(problem.draft.key, make)

    @staticmethod
    def read_row(row: Mapping[str, Any], number: int) -> Row:
        """A task's fields from a row of a user's file."""
        raise NotImplementedError

    def fields(self, problem: Problem, rng: random.Random, level: int) -> dict[str, Any]:
        """A task's fields from a generated problem."""
        raise NotImplementedError

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        self.check_split(split)
        if split in self.files:
            return dataset_readers.tasks(self.files, split, self.name, self.read_row)[:count]
        return super().tasks(split, count, seed)
