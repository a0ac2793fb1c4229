"""How many lines of input a program is sure to read, told from its text: an input with fewer need not be tried."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

MAX_DIGITS = 6
WAYS_OUT = {"exit", "quit", "_exit", "input"}
"""Names that make a program's reading untellable: it may end early, or have an `input` of its own."""


def needed_lines(program: str, first_line: str) -> int:
    """The `input()` calls that no run without an error can pass by; 0 where that cannot be told.

    Never too many: what stands in a branch, a function or a loop may not be run and is not counted, save for
    `for ... in range(int(input()))` at the beginning, which goes round as often as the first line says.
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    if any(map(_untellable, ast.walk(tree))):
        return 0
    body: Sequence[ast.stmt] = tree.body
    if len(body) == 1 and isinstance(body[0], ast.FunctionDef) and body[0].name == "solve":
        body = body[0].body  # whoever runs it calls it
    total = 0
    for statement in body:
        if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
            break
        if isinstance(statement, ast.For):
            rounds = _rounds(statement, first_line) if total == 0 else 0
            total += _calls(statement.iter) + rounds * sum(map(_calls, statement.body))
        elif not isinstance(statement, ast.If | ast.While | ast.With | ast.Match):
            total += _calls(statement)
    return total


def _untellable(node: ast.AST) -> bool:
    match node:
        case ast.Try() | ast.TryStar() | ast.Raise():
            return True
        case ast.Name(id=name, ctx=ctx):
            return name in WAYS_OUT and not (name == "input" and isinstance(ctx, ast.Load))
        case ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return name in WAYS_OUT
        case ast.alias(name=name, asname=other):
            return (other or name) in {*WAYS_OUT, "*"}
    return False


def _rounds(loop: ast.For, first_line: str) -> int:
    jumps = (ast.Break, ast.Continue, ast.If, ast.While, ast.For, ast.With, ast.Match)
    text = first_line.strip()
    simple = not any(isinstance(node, jumps) for part in loop.body for node in ast.walk(part))
    counted = ast.unparse(loop.iter) == "range(int(input()))" and text.isascii() and text.isdigit()
    return int(text) if simple and counted and len(text) <= MAX_DIGITS else 0


def _calls(node: ast.AST) -> int:
    return sum(
        isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "input"
        for inner in _evaluated(node)
    )


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes within a node that are evaluated whenever it is."""
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
        yield from _evaluated(part)
