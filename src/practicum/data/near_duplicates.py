"""Tasks that are the same but for names, case or punctuation: splits must not share them either."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from practicum.task import Task, canonical_json

PROGRAM_FIELDS = ("solution", "program")
WORD = re.compile(r"\w+")


def near_duplicate_key(task: Task) -> str:
    """Return a text that two tasks have in common if they differ only in names of a program, case or punctuation.

    A task with a Python program is that program; another one with a question is its words and its other fields.
    """
    for name in PROGRAM_FIELDS:
        source = task.fields.get(name)
        key = program_key(source) if isinstance(source, str) else None
        if key is not None:
            return key
    question = task.fields.get("question")
    if not isinstance(question, str):
        return task.hash
    others = {name: value for name, value in task.fields.items() if name not in ("id", "question")}
    return f"{' '.join(WORD.findall(question.casefold()))}\n{canonical_json(others)}"


def program_key(source: str) -> str | None:
    """Return a program with the names that it defines replaced by numbers, constants kept; None if it is not Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not any(isinstance(node, ast.FunctionDef | ast.Call | ast.Assign) for node in ast.walk(tree)):
        return None  # a sentence of one word is Python too
    numbers: dict[str, str] = {}
    for node in ast.walk(tree):
        for name in _own_names(node):
            numbers.setdefault(name, f"_{len(numbers)}")
    return ast.unparse(_Renamer(numbers).visit(tree))


def _own_names(node: ast.AST) -> Iterable[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            return (name,)
        case ast.Name(id=name, ctx=ast.Store()):
            return (name,)
    return ()


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        for attribute in ("id", "name", "arg"):
            name = getattr(node, attribute, None)
            if isinstance(name, str) and not isinstance(node, ast.keyword | ast.alias):
                setattr(node, attribute, self.names.get(name, name))
        return node
