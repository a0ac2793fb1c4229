"""The program in an answer: the fenced block that is meant, completed by the prompt of the problem."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection

FENCE_LINE = re.compile(r"[ \t]*```([^`]*)")
PYTHON_LABELS = ("python", "py", "python3")
INDENTS = ("    ", "        ")


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a text with their labels; `py` and `python3` become `python`.

    A block that is not closed ends with the text. Each line is read once.
    """
    blocks: list[tuple[str, str]] = []
    label: str | None = None
    body: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = FENCE_LINE.fullmatch(line)
        if label is None:
            label = None if fence is None else fence[1].strip().lower()
        elif fence is None or fence[1].strip():
            body.append(line)
        else:
            blocks.append((label, "\n".join(body)))
            label, body = None, []
    if label is not None and body:
        body[-1] = body[-1].rstrip().removesuffix("```")
        blocks.append((label, "\n".join(body)))
    labelled = [("python" if label in PYTHON_LABELS else label, body) for label, body in blocks]
    return [(label, textwrap.dedent(body).strip("\n")) for label, body in labelled]


def extract_code(answer: str, names: Collection[str] = ()) -> str:
    """Return the Python block of an answer that defines most of the names; of equals the last one.

    Without a Python block, blocks without a label are considered, then all; without a block, the whole answer.
    """
    blocks = fenced_blocks(answer)
    if not blocks:
        return textwrap.dedent(answer.replace("\r\n", "\n")).strip("\n")
    labels = {label for label, _ in blocks}
    chosen_label = next((label for label in ("python", "") if label in labels), None)
    bodies = [body for label, body in reversed(blocks) if chosen_label in (label, None)]
    return max(bodies, key=lambda body: sum(defines(body, name) for name in names))


def defines(code: str, name: str) -> bool:
    """Return whether a program defines a function, class or variable of that name."""
    name = re.escape(name)
    return re.search(rf"^(?:(?:async )?def|class) {name}\b|^{name} *=[^=]", code, re.M) is not None


def complete(code: str, prompt: str, entry_point: str | None) -> str:
    """Complete an answer with HumanEval's prompt (imports, helpers, signature); the answer may be the body alone.

    Classes of the prompt come last, so that an answer cannot replace them: they belong to the problem.
    """
    if not prompt or not entry_point:
        return code
    if defines(code, entry_point):
        return f"{_closed(prompt)}\n{code}\n{_source(prompt, entry_point, classes=True)}"
    bodies = [f"{prompt}\n{textwrap.indent(code, indent)}" for indent in INDENTS]
    return next((program for program in bodies if _parses(program)), bodies[0])


def helpers(prompt: str, entry_point: str | None) -> str:
    """Return what a prompt defines beside the function that is asked for, without classes: imports, helpers, constants.

    Tests use these and not what the candidate makes of them.
    """
    return _source(prompt, entry_point, classes=False) if entry_point else ""


def _source(prompt: str, entry_point: str, *, classes: bool) -> str:
    try:
        tree = ast.parse(_closed(prompt))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    rest = [node for node in tree.body if not _contains_definition(node, entry_point)]
    return "\n".join(ast.unparse(node) for node in rest if isinstance(node, ast.ClassDef) is classes)


def _contains_definition(node: ast.stmt, name: str) -> bool:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(inner, definitions) and inner.name == name for inner in ast.walk(node))


def _closed(prompt: str) -> str:
    """Return a prompt as a whole program: a signature without a docstring gets a body."""
    programs = [prompt, *(f"{prompt}\n{indent}pass\n" for indent in INDENTS)]
    return next((program for program in programs if _parses(program)), prompt)


def _parses(program: str) -> bool:
    try:
        ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
