"""Formulas in conjunctive normal form: random generation, text notations, checking, and solving.

A clause is a tuple of literals as in DIMACS: 3 means x3, -3 means not x3. An assignment maps a variable's number
to its value and may leave variables out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence

from practicum.errors import UserError

Clause = tuple[int, ...]
Assignment = Mapping[int, bool]

THRESHOLDS = {2: 1.0, 3: 4.267, 4: 9.931, 5: 21.117, 6: 43.37, 7: 87.79}
"""Clauses per variable at which half of all large random k-SAT formulas can be satisfied, by k."""
ASSIGNMENT = re.compile(r"x(\d+)=(True|False|1|0)")
ANSWER = re.compile(rf"{ASSIGNMENT.pattern}|\b(UNSAT)\b")
MAX_DIGITS = 9


def planted(rng: random.Random, variables: int, width: int, count: int) -> list[Clause]:
    """Return clauses that a hidden assignment satisfies: one literal of each is forced to agree with it."""
    hidden = [rng.random() < 0.5 for _ in range(variables + 1)]
    clauses = []
    for _ in range(count):
        chosen = rng.sample(range(1, variables + 1), width)
        forced = rng.randrange(width)
        signs = [hidden[v] if i == forced else rng.random() < 0.5 for i, v in enumerate(chosen)]
        clauses.append(tuple(v if sign else -v for v, sign in zip(chosen, signs, strict=True)))
    return clauses


def uniform(rng: random.Random, variables: int, width: int, count: int) -> list[Clause]:
    """Return clauses of distinct variables with random signs."""
    return [
        tuple(v if rng.random() < 0.5 else -v for v in rng.sample(range(1, variables + 1), width)) for _ in range(count)
    ]


def satisfies_clause(clause: Clause, assignment: Assignment) -> bool:
    """Return whether a literal of the clause is true; an unassigned variable makes none true."""
    return any(assignment.get(abs(literal)) is (literal > 0) for literal in clause)


def solve(clauses: Sequence[Clause], variables: int) -> dict[int, bool] | None:
    """Return an assignment of all variables that satisfies the clauses, by python-sat; None if there is none."""
    try:
        from pysat.solvers import Minisat22  # only generators of certified formulas and the expert need it
    except ModuleNotFoundError:
        raise UserError("affine:sat's solver is not installed; run `pip install 'practicum[affine]'`.") from None
    with Minisat22(bootstrap_with=[list(clause) for clause in clauses]) as solver:
        if not solver.solve():
            return None
        model = set(solver.get_model())
    return {variable: variable in model for variable in range(1, variables + 1)}


def read_answer(text: str) -> dict[int, bool] | None:
    """Return the assignment in a text, or None for UNSAT, whichever comes last; ValueError if there is neither.

    If a variable is assigned twice, the later value counts.
    """
    matches = list(ANSWER.finditer(text))
    if not matches:
        raise ValueError("no assignment")
    if matches[-1][3]:
        return None
    # Length first: Python refuses to read numbers of thousands of digits.
    assignments = (m for m in matches if not m[3] and len(m[1]) <= MAX_DIGITS)
    return {int(m[1]): m[2] in ("True", "1") for m in assignments}


def write_answer(assignment: Assignment | None) -> str:
    if assignment is None:
        return "UNSAT"
    return ", ".join(f"x{variable}={value}" for variable, value in sorted(assignment.items()))


def symbols(clauses: Sequence[Clause]) -> str:
    """(x1 ∨ x2 ∨ ¬x3) ∧ (¬x1 ∨ x3)"""
    return _join(clauses, "∨", "∧", "¬")


def words(clauses: Sequence[Clause]) -> str:
    """(x1 or x2 or not x3) and (not x1 or x3)"""
    return _join(clauses, "or", "and", "not ")


def numbers(clauses: Sequence[Clause]) -> str:
    """1 2 -3, -1 3"""
    return ", ".join(" ".join(map(str, clause)) for clause in clauses)


def _join(clauses: Sequence[Clause], either: str, both: str, negation: str) -> str:
    def literal(variable: int) -> str:
        return f"x{variable}" if variable > 0 else f"{negation}x{-variable}"

    return f" {both} ".join(f"({f' {either} '.join(map(literal, clause))})" for clause in clauses)


NOTATIONS: Mapping[str, Callable[[Sequence[Clause]], str]] = {"symbols": symbols, "words": words, "numbers": numbers}
