"""The least number of input lines that a program reads, from its source: inputs with fewer need not be run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

MAX_DIGITS = 6
EXIT_NAMES = {"exit", "quit", "_exit", "input"}
"""Names with which the lines cannot be counted: the program may end early or define its own `input`."""


def min_input_lines(program: str, first_line: str) -> int:
    """Return the number of `input()` calls that every run without an error makes; 0 if it cannot be determined.

    Never too many: calls in a branch, a function or a loop may not run and are not counted, except in a first
    `for ... in range(int(input()))`, which runs as often as the first line says.
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    if any(map(_prevents_counting, ast.walk(tree))):
        return 0
    body: Sequence[ast.stmt] = tree.body
    if len(body) == 1 and isinstance(body[0], ast.FunctionDef) and body[0].name == "solve":
        body = body[0].body  # the runner calls it
    total = 0
    for statement in body:
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            break
        if isinstance(statement, ast.For):
            rounds = _num_rounds(statement, first_line) if total == 0 else 0
            total += _num_input_calls(statement.iter) + rounds * sum(map(_num_input_calls, statement.body))
        elif not isinstance(statement, ast.If | ast.While | ast.With | ast.Match):
            total += _num_input_calls(statement)
    return total


def _prevents_counting(node: ast.AST) -> bool:
    match node:
        case ast.Try() | ast.TryStar() | ast.Raise():
            return True
        case ast.Name(id=name, ctx=ctx):
            return name in EXIT_NAMES and not (name == "input" and isinstance(ctx, ast.Load))
        case ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name in EXIT_NAMES
        case ast.alias(name=name, asname=other):
            return (other or name) in {*EXIT_NAMES, "*"}
    return False


def _num_rounds(loop: ast.For, first_line: str) -> int:
    jumps = (ast.Break, ast.Continue, ast.If, ast.While, ast.For, ast.With, ast.Match)
    text = first_line.strip()
    simple = not any(isinstance(node, jumps) for part in loop.body for node in ast.walk(part))
    counted = ast.unparse(loop.iter) == "range(int(input()))" and text.isascii() and text.isdigit()
    return int(text) if simple and counted and len(text) <= MAX_DIGITS else 0


def _num_input_calls(node: ast.AST) -> int:
    return sum(
        isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "input"
        for inner in _always_evaluated(node)
    )


def _always_evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes within a node that are evaluated whenever it is."""
    yield node
    parts: list[ast.AST]
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Lambda() | ast.GeneratorExp():
            return
        case ast.IfExp(test=first) | ast.BoolOp(values=[first, *_]) | ast.Compare(left=first):
            parts = [first]
        case (
            ast.ListComp(generators=[first, *_])
            | ast.SetComp(generators=[first, *_])
            | ast.DictComp(generators=[first, *_])
        ):
            parts = [first.iter]
        case _:
            parts = list(ast.iter_child_nodes(node))
    for part in parts:
        yield from _always_evaluated(part)
