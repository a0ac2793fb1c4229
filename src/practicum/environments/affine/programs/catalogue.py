"""All templates by level, and problems from them: statement, program, and inputs with their outputs."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from practicum.environments.affine.programs import algorithms, grids, lists, loops, numbers, texts
from practicum.environments.affine.programs.base import Draft, Template, output_text

LEVELS: Mapping[int, Sequence[Template]] = {
    1: numbers.LEVEL_1,
    2: (*numbers.LEVEL_2, *texts.LEVEL_2),
    3: (*loops.LEVEL_3, *texts.LEVEL_3, *lists.LEVEL_3),
    4: (*loops.LEVEL_4, *texts.LEVEL_4, *lists.LEVEL_4),
    5: (*grids.LEVEL_5, *algorithms.LEVEL_5),
}
NUM_DRAWS = 40
"""Number of inputs from which cases are chosen."""


@dataclass(frozen=True)
class Case:
    """One input and its expected output."""

    input: str
    output: str


@dataclass(frozen=True)
class Problem:
    """A template with its random choices made."""

    template: str
    level: int
    draft: Draft

    @property
    def program(self) -> str:
        return "\n".join((*self.draft.shape.reading, *self.draft.lines))

    @property
    def wrapped(self) -> str:
        """Return the program inside a function `solve`, as in programming contests; the runner calls it."""
        return f"def solve():\n{textwrap.indent(self.program, '    ')}"

    def cases(self, rng: random.Random, count: int) -> list[Case]:
        """Return distinct inputs with outputs as varied as possible, so that a constant answer passes few."""
        values = [*self.draft.edges, *(self.draft.shape.draw(rng) for _ in range(NUM_DRAWS))]
        drawn = {self.draft.shape.write(values_read): values_read for values_read in values}
        rng.shuffle(order := list(drawn))
        cases = [Case(text, output_text(self.draft.reference(*drawn[text]))) for text in order]
        cases = [case for case in cases if case.output.strip()]
        new: dict[str, Case] = {}
        for case in cases:
            new.setdefault(case.output, case)
        firsts = list(new.values())
        remaining = [case for case in cases if new[case.output] is not case]
        return [*firsts, *remaining][:count]


def draw_problem(rng: random.Random, level: int, template: Template | None = None) -> Problem:
    template = template or rng.choice(LEVELS[level])
    return Problem(template.__name__, level, template(rng))
