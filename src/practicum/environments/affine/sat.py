"""`affine:sat`: find values of the variables that satisfy a formula, or answer that there are none.

Formulas are random k-SAT: planted (a hidden assignment satisfies every clause) or certified (drawn uniformly until
python-sat finds one that is satisfiable or not, as wanted). Only the clauses decide whether an answer is right; any
assignment that satisfies them all counts, and a variable that is left out satisfies nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from practicum.environment import Action, Observation, ScriptedPolicy
from practicum.environments.affine import formulas
from practicum.environments.affine.base import AffineEnvironment, TaskDraft, UnreadableAnswer, Verdict
from practicum.environments.affine.formulas import NOTATIONS, THRESHOLDS, Clause
from practicum.errors import UserError, did_you_mean
from practicum.task import Task

KINDS = ("planted", "certified")
MAX_DRAWS = 1000
"""Number of formulas drawn for one that is satisfiable (or not, as wanted)."""
MAX_VARIABLES = 200
ASK = "Make the formula true. Reply with every variable, like x1=True, x2=False, or UNSAT if it cannot be."
HINTS = {"symbols": "", "words": "", "numbers": " 2 is x2, -2 is not x2; each group needs one that is true."}


@dataclass(frozen=True, slots=True)
class FormulaSizes:
    """Ranges of a formula's sizes; a ratio of None is the threshold of each width."""

    variables: tuple[int, int]
    width: tuple[int, int]
    ratio: float | None


LEVELS: Mapping[int, FormulaSizes] = {
    1: FormulaSizes((3, 4), (2, 2), 1.5),
    2: FormulaSizes((5, 7), (3, 3), 3.0),
    3: FormulaSizes((8, 10), (3, 3), 4.2),
    4: FormulaSizes((10, 20), (3, 5), 4.2),
    5: FormulaSizes((10, 20), (3, 5), None),
}
"""Level 4 is Affine's own; level 5 has the number of clauses at which each width is hardest."""


class SatEnvironment(AffineEnvironment[Mapping[int, bool] | None]):
    """Random k-SAT formulas to satisfy (n 10 to 20, k 3 to 5, 4.2 clauses a variable)."""

    name = "affine:sat"
    has_one_answer = False  # a formula may have several models

    def __init__(
        self,
        format: str = "hf",
        reward: str = "native",
        levels: Sequence[int] = (4,),
        n: int | Sequence[int] | None = None,
        k: int | Sequence[int] | None = None,
        ratio: float | str | None = None,
        kind: str = "planted",
        unsat: float = 0.0,
        notation: str = "symbols",
        tries: int = 1,
    ) -> None:
        super().__init__(format, reward, tries, levels, max(LEVELS))
        for option, value, allowed in (("kind", kind, KINDS), ("notation", notation, NOTATIONS)):
            if value not in allowed:
                raise UserError(f"affine:sat has no {option} '{value}'.{did_you_mean(str(value), allowed)}")
        if isinstance(unsat, bool) or not isinstance(unsat, int | float) or not 0 <= unsat <= 1:
            raise UserError(f"affine:sat needs unsat, a share from 0 to 1; got {unsat}.")
        self.kind, self.unsat, self.notation = kind, unsat, notation
        self.system = ASK + HINTS[notation]
        self.ranges = {level: _ranges(LEVELS[level], n, k, ratio) for level in self.levels}

    def draw(self, rng: random.Random, level: int) -> TaskDraft:
        ranges = self.ranges[level]
        variables, width = rng.randint(*ranges.variables), rng.randint(*ranges.width)
        ratio = THRESHOLDS[width] if ranges.ratio is None else ranges.ratio
        count = max(1, int(ratio * variables))
        satisfiable = not (self.unsat and rng.random() < self.unsat)
        clauses = self._clauses(rng, variables, width, count, satisfiable)
        fields = {"clauses": clauses, "n": variables, "k": width, "satisfiable": satisfiable, "level": level}
        # The same clauses in another order are the same formula.
        return TaskDraft(sorted(sorted(clause) for clause in clauses), lambda: fields)

    def _clauses(self, rng: random.Random, variables: int, width: int, count: int, satisfiable: bool) -> list[Clause]:
        # If some formulas are UNSAT, all are drawn in the same way, which would otherwise reveal the answer.
        if self.kind == "planted" and not self.unsat:
            return formulas.planted(rng, variables, width, count)
        for _ in range(MAX_DRAWS):
            clauses = formulas.uniform(rng, variables, width, count)
            if (formulas.solve(clauses, variables) is not None) == satisfiable:
                return clauses
        raise UserError(
            f"Of {MAX_DRAWS} random formulas with n={variables}, k={width} and {count} clauses none is "
            f"{'satisfiable' if satisfiable else 'UNSAT'}; set ratio=threshold, or k=3."
        )

    def question(self, task: Task) -> str:
        return NOTATIONS[self.notation](clauses_of(task))

    def read(self, text: str) -> Mapping[int, bool] | None:
        try:
            return formulas.read_answer(text)
        except ValueError:
            raise UnreadableAnswer("give every variable a value, like x1=True, x2=False, or say UNSAT.") from None

    async def judge(self, task: Task, answer: Mapping[int, bool] | None) -> Verdict:
        clauses = clauses_of(task)
        if answer is None:
            right = not _satisfiable(task, clauses)
            text = "Right, it cannot be satisfied." if right else "Wrong: it can be satisfied."
            return Verdict(right, float(right), text, {"clauses": float(len(clauses))})
        unsatisfied = [clause for clause in clauses if not formulas.satisfies_clause(clause, answer)]
        share = 1 - len(unsatisfied) / len(clauses)
        text = f"Not satisfied: {NOTATIONS[self.notation](unsatisfied[:1])}" if unsatisfied else "Satisfied."
        components = {"satisfied": float(len(clauses) - len(unsatisfied)), "clauses": float(len(clauses))}
        return Verdict(not unsatisfied, share, text, components)

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy that gives python-sat's solution."""
        answer = formulas.write_answer(formulas.solve(clauses_of(task), int(task.fields["n"])))
        return lambda observation: Action(content=answer)

    def wrong_attempts(self, task: Task, solution: Sequence[Action]) -> Sequence[Sequence[Action]]:
        """Say that a satisfiable formula is not, and make every literal of one clause false; or the reverse."""
        values = formulas.read_answer(solution[-1].content)
        if values is None:
            all_true = dict.fromkeys(range(1, int(task.fields["n"]) + 1), True)
            return ((Action(content=formulas.write_answer(all_true)),),)
        clause = clauses_of(task)[0]
        violated = {**values, **{abs(literal): literal < 0 for literal in clause}}
        answers = (None, violated) if len({abs(literal) for literal in clause}) == len(set(clause)) else (None,)
        return [(Action(content=formulas.write_answer(answer)),) for answer in answers]

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that gives every variable a random value."""
        rng = random.Random(f"affine-sat-random/{task.id}/{seed}")

        def act(observation: Observation) -> Action:
            values = {variable: rng.random() < 0.5 for variable in range(1, int(task.fields["n"]) + 1)}
            return Action(content=formulas.write_answer(values))

        return act


def clauses_of(task: Task) -> list[Clause]:
    clauses = task.fields.get("clauses")
    if not clauses:
        raise UserError(f"Task '{task.id}' has no 'clauses'; give a list of lists of numbers, such as [[1, -2, 3]].")
    return [tuple(clause) for clause in clauses]


def _satisfiable(task: Task, clauses: Sequence[Clause]) -> bool:
    """Return whether the formula is satisfiable: a field of generated tasks; of other tasks the solver decides."""
    stated = task.fields.get("satisfiable")
    if isinstance(stated, bool):
        return stated
    return formulas.solve(clauses, max(abs(literal) for clause in clauses for literal in clause)) is not None


def _ranges(
    level: FormulaSizes, n: int | Sequence[int] | None, k: int | Sequence[int] | None, ratio: float | str | None
) -> FormulaSizes:
    """Return the level's ranges, replaced by the options that are set."""
    variables, width = _range("n", n, level.variables), _range("k", k, level.width)
    if width[0] < 1 or width[1] > variables[0] or variables[1] > MAX_VARIABLES:
        raise UserError(
            f"affine:sat needs 1 <= k <= n <= {MAX_VARIABLES} all through; got n {variables[0]} to {variables[1]} "
            f"and k {width[0]} to {width[1]}."
        )
    clauses = level.ratio if ratio is None else ratio
    if clauses == "threshold":
        clauses = None
    if clauses is None:
        if width[0] < min(THRESHOLDS) or width[1] > max(THRESHOLDS):
            raise UserError(f"affine:sat knows thresholds for k from 2 to {max(THRESHOLDS)}; give ratio as a number.")
    elif isinstance(clauses, bool | str) or not 0 < clauses <= 1000:
        raise UserError(f"affine:sat needs a ratio above 0 or 'threshold'; got {ratio}.")
    return FormulaSizes(variables, width, None if clauses is None else float(clauses))


def _range(name: str, value: int | Sequence[int] | None, default: tuple[int, int]) -> tuple[int, int]:
    bounds = default if value is None else (value, value) if isinstance(value, int) else tuple(value)
    if len(bounds) != 2 or not all(isinstance(bound, int) and not isinstance(bound, bool) for bound in bounds):
        raise UserError(f"affine:sat needs {name} as a whole number or a pair such as [10, 20]; got {value}.")
    if bounds[0] > bounds[1]:
        raise UserError(f"affine:sat needs {name} with the smaller number first; got {value}.")
    return bounds[0], bounds[1]
