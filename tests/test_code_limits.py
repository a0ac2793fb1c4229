"""No source file is longer than 600 lines and no function longer than 60."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "practicum"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

EXCEPTIONS: frozenset[str] = frozenset()
"""Functions that are being split. Nothing is added here."""


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    long = {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}
    assert not long, f"Split these files, one noun per file; at most {MAX_FILE_LINES} lines each: {long}"


def test_no_function_is_too_long() -> None:
    long = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = length
    too_long = {name: length for name, length in long.items() if name not in EXCEPTIONS}
    assert not too_long, f"Split these functions; at most {MAX_FUNCTION_LINES} lines from `def` to the end: {too_long}"
    assert set(long) >= EXCEPTIONS, f"No longer needed, remove from EXCEPTIONS: {sorted(EXCEPTIONS - set(long))}"
