"""The closed menu of rules: each kind is a check of a text, with at most one parameter.

These functions are ours and run in this process; programs that a model writes run in the sandbox (`code_rules`).
A task's input and a candidate's output are texts; a table is text with one row per line and `|` between its cells.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

CELL = "|"
TOPICS = ("structure", "figures", "wording", "length")
"""What a stakeholder can be asked about; each rule kind belongs to one."""
WORD = re.compile(r"[\w'-]+")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
PLACEHOLDERS = ("TODO", "TBD", "n/a")


@dataclass(frozen=True)
class RuleKind:
    """A check. `parameter` is what it takes: "text", "number" or "" for nothing."""

    name: str
    topic: str
    parameter: str
    description: str
    evaluate: Callable[[str, str, str], float]
    """(task input, candidate output, parameter) to a score in [0, 1]."""

    def parameter_problem(self, parameter: str) -> str:
        """Return what is wrong with a parameter, or ""."""
        if self.parameter == "number":
            fits = parameter.isdecimal() and len(parameter) < 7 and int(parameter) > 0
            return "" if fits else "takes a whole number above zero"
        if self.parameter == "text":
            return "" if parameter.strip() else "takes a text"
        return "takes no parameter" if parameter else ""


def table_of(text: str) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the table in a text; a table is the lines that have cells."""
    lines = [[cell.strip() for cell in line.split(CELL)] for line in text.splitlines() if CELL in line]
    return (lines[0], lines[1:]) if lines else ([], [])


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


def _contains(text: str, phrase: str) -> bool:
    words, phrase_words = words_of(text), words_of(phrase)
    return bool(phrase_words) and any(
        words[i : i + len(phrase_words)] == phrase_words for i in range(len(words) - len(phrase_words) + 1)
    )


def _section(task_input: str, output: str, heading: str) -> float:
    """1 with text under the heading, half with the heading alone."""
    lines = output.splitlines()
    for index, line in enumerate(lines):
        if line.startswith("#") and line.lstrip("# ").strip().lower() == heading.strip().lower():
            following = next((later for later in lines[index + 1 :] if later.strip()), "#")
            return 0.5 if following.startswith("#") else 1.0
    return 0.0


def _column(task_input: str, output: str, column: str) -> float:
    return float(column.strip().lower() in [name.lower() for name in table_of(output)[0]])


def _function(task_input: str, output: str, name: str) -> float:
    """1 where the program can be read and defines the function, with more than `pass` in it."""
    try:
        tree = ast.parse(output)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0.0
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name.strip():
            body = [part for part in node.body if not (isinstance(part, ast.Expr) and _is_text(part.value))]
            return 0.5 if all(isinstance(part, ast.Pass) for part in body) else 1.0
    return 0.0


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _docstrings(task_input: str, output: str, parameter: str) -> float:
    """The share of functions that have a docstring."""
    try:
        tree = ast.parse(output)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0.0
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return sum(ast.get_docstring(node) is not None for node in functions) / len(functions) if functions else 0.0


def column_total(text: str, column: str) -> float | None:
    """Return the sum of a column of the table in a text; None where there is no such column."""
    columns, rows = table_of(text)
    names = [name.lower() for name in columns]
    if column.strip().lower() not in names:
        return None
    index = names.index(column.strip().lower())
    cells = [row[index] for row in rows if len(row) > index and row[0].lower() != "total"]
    return sum(float(cell) for cell in cells if NUMBER.fullmatch(cell))


def _total(task_input: str, output: str, column: str) -> float:
    """1 where the output states the total of a column of the input."""
    total = column_total(task_input, column)
    if total is None:
        return 0.0
    return float(any(abs(float(number) - total) < 0.005 for number in NUMBER.findall(output)))


def _sorted(task_input: str, output: str, column: str) -> float:
    """The share of neighbouring rows in descending order of a column."""
    columns, rows = table_of(output)
    names = [name.lower() for name in columns]
    if column.strip().lower() not in names:
        return 0.0
    index = names.index(column.strip().lower())
    cells = [row[index] for row in rows if len(row) > index and row[0].lower() != "total"]
    values = [float(cell) for cell in cells if NUMBER.fullmatch(cell)]
    pairs = list(itertools.pairwise(values))
    return sum(first >= second for first, second in pairs) / len(pairs) if pairs else 0.0


def _rows(task_input: str, output: str, number: str) -> float:
    """Rows of the table, or items of a list, as a share of the number that is wanted."""
    count = len([row for row in table_of(output)[1] if row[0].lower() != "total"])
    count = count or sum(line.startswith("- ") for line in output.splitlines())
    return min(1.0, count / int(number))


def _complete(task_input: str, output: str, parameter: str) -> float:
    """1 less a quarter for every empty cell and every placeholder."""
    holes = sum(cell == "" for row in table_of(output)[1] for cell in row)
    holes += sum(output.count(word) for word in PLACEHOLDERS)
    return max(0.0, 1 - 0.25 * holes) if output.strip() else 0.0


def _mention(task_input: str, output: str, phrase: str) -> float:
    return float(_contains(output, phrase))


def _avoid(task_input: str, output: str, phrase: str) -> float:
    return float(bool(output.strip()) and not _contains(output, phrase))


def _words(task_input: str, output: str, number: str) -> float:
    """1 up to the number of words, falling to 0 at half as many again."""
    return _at_most(len(words_of(output)), int(number))


def _lines(task_input: str, output: str, number: str) -> float:
    """1 up to the number of lines that are not empty, falling to 0 at half as many again."""
    return _at_most(sum(bool(line.strip()) for line in output.splitlines()), int(number))


def _at_most(count: int, limit: int) -> float:
    if count == 0:
        return 0.0
    return min(1.0, max(0.0, 1 - (count - limit) / (0.5 * limit)))


RULE_KINDS = {
    kind.name: kind
    for kind in (
        RuleKind("section", "structure", "text", "has text under this heading", _section),
        RuleKind("column", "structure", "text", "the table has this column", _column),
        RuleKind("function", "structure", "text", "defines this function", _function),
        RuleKind("docstrings", "structure", "", "every function has a docstring", _docstrings),
        RuleKind("total", "figures", "text", "states the total of this column of the input", _total),
        RuleKind("sorted", "figures", "text", "rows are in descending order of this column", _sorted),
        RuleKind("rows", "figures", "number", "at least so many rows or items", _rows),
        RuleKind("complete", "figures", "", "no empty cell and no placeholder", _complete),
        RuleKind("mention", "wording", "text", "contains this word or name", _mention),
        RuleKind("avoid", "wording", "text", "does not contain this word or name", _avoid),
        RuleKind("words", "length", "number", "at most so many words", _words),
        RuleKind("lines", "length", "number", "at most so many lines", _lines),
    )
}
