"""Work backwards from a program's output to an input, with the steps in writing: what a small model can imitate.

Only programs that read integers and print one expression of them, with each name in it once, are worked out; every
other program gives None. Of several inputs that give the output a simple one is found, which need not be the one that
the output was made with.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_VALUE = 10**9
READS = "int(input())"
FUNCTIONS: dict[str, Callable[..., int]] = {"max": max, "min": min, "abs": abs}
OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b if b == 2 else _unsolved(),
}


class Unsolved(Exception):
    """This expression is not worked out here."""


@dataclass
class Derivation:
    """Values of the names that give the output, and the equations that lead to them."""

    values: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


def work_backwards(program: str, output: str) -> tuple[list[str], list[int]] | None:
    """Return the equations and the numbers to put in, or None."""
    try:
        names, expression = _parts(program)
        target = int(output)
        derivation = Derivation(lines=[f"{ast.unparse(expression)} = {target}"])
        _solve(expression, target, derivation)
        if _value(expression, derivation.values) != target:
            return None
        return derivation.lines, [derivation.values[name] for name in names]
    except (Unsolved, ValueError, SyntaxError, KeyError, ZeroDivisionError):
        return None


def _unsolved() -> int:
    raise Unsolved


def _parts(program: str) -> tuple[list[str], ast.expr]:
    """The names that are read, in their order, and what is printed."""
    *reads, last = ast.parse(program).body or _no_lines()
    names = []
    for line in reads:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if ast.unparse(value) == READS:
                names.append(name)
            case _:
                raise Unsolved
    match last:
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=[expression], keywords=[])):
            return names, expression
    raise Unsolved


def _no_lines() -> list[ast.stmt]:
    raise Unsolved


def _names(node: ast.expr) -> list[str]:
    """Every use of a name that is no function's."""
    functions = {id(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and id(part) not in functions]


def _value(node: ast.expr, values: dict[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)) if abs(number) <= MAX_VALUE:
            return int(number)
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(argument, values) for argument in arguments))
    raise Unsolved


def _solve(node: ast.expr, target: int, derivation: Derivation) -> None:
    """Give the names in `node` values that make it `target`, one equation at a time."""
    match node:
        case ast.Name(id=name):
            derivation.values[name] = target
        case ast.Call(func=ast.Name(id="abs"), args=[inner]):
            _next(inner, target, str(target), derivation)
        case ast.Call(func=ast.Name(id="max" | "min"), args=[inner, ast.Constant()]):
            _next(inner, target, str(target), derivation)
        case ast.BinOp(left=left, op=op, right=right):
            names = _names(node)
            if len(set(names)) < len(names):
                raise Unsolved
            if _names(left) and _names(right):
                _choose(left, op, right, target, derivation)
                _solve_operation(_Number(_value(left, derivation.values)), op, right, target, derivation)
            elif _names(right):
                _solve_operation(_Number(_value(left, {})), op, right, target, derivation)
            else:
                _solve_operation(left, op, _Number(_value(right, {})), target, derivation)
        case _:
            raise Unsolved


@dataclass(frozen=True)
class _Number:
    """A side of an operation whose number is known."""

    number: int


def _choose(left: ast.expr, op: ast.operator, right: ast.expr, target: int, derivation: Derivation) -> None:
    """Give the only name on the left the smallest value from 0 on for which the right side has a solution."""
    names = _names(left)
    if len(names) != 1:
        raise Unsolved
    for value in range(20):
        trial = Derivation({names[0]: value})
        try:
            number_side = _Number(_value(left, trial.values))
            _solve_operation(number_side, op, right, target, trial)
        except (Unsolved, ZeroDivisionError):
            continue
        derivation.values[names[0]] = value
        derivation.lines.append(f"{names[0]} = {value}")
        return
    raise Unsolved


def _solve_operation(
    left: ast.expr | _Number, op: ast.operator, right: ast.expr | _Number, target: int, derivation: Derivation
) -> None:
    """Undo one operation: one side of it is known, the other one is solved for."""
    match left, op, right:
        case _Number(number), ast.Add(), ast.expr() as side:
            _next(side, target - number, f"{target} - {_signed(number)}", derivation)
        case ast.expr() as side, ast.Add(), _Number(number):
            _next(side, target - number, f"{target} - {_signed(number)}", derivation)
        case _Number(number), ast.Sub(), ast.expr() as side:
            _next(side, number - target, f"{number} - {_signed(target)}", derivation)
        case ast.expr() as side, ast.Sub(), _Number(number):
            _next(side, target + number, f"{target} + {_signed(number)}", derivation)
        case (_Number(number), ast.Mult(), ast.expr() as side) | (ast.expr() as side, ast.Mult(), _Number(number)):
            if target % number:
                raise Unsolved
            _next(side, target // number, f"{target} / {_signed(number)}", derivation)
        case ast.expr() as side, ast.FloorDiv(), _Number(number):
            _next(side, target * number, f"{target} * {_signed(number)}", derivation)
        case ast.expr() as side, ast.Mod(), _Number(_):
            _next(side, target, str(target), derivation)
        case ast.expr() as side, ast.Pow(), _Number(2):
            if target < 0 or math.isqrt(target) ** 2 != target:
                raise Unsolved
            _next(side, math.isqrt(target), f"sqrt({target})", derivation)
        case _:
            raise Unsolved


def _signed(number: int) -> str:
    return f"({number})" if number < 0 else str(number)


def _next(node: ast.expr, target: int, computation: str, derivation: Derivation) -> None:
    equation = f"{ast.unparse(node)} = {computation}"
    derivation.lines.append(equation if computation == str(target) else f"{equation} = {target}")
    _solve(node, target, derivation)
