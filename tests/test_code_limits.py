"""Limits of the source: lines per file and function, no block of more than ten lines twice, one class per name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "practicum"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_REPEATED_LINES = 10

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


def test_no_block_stands_twice() -> None:
    length = MAX_REPEATED_LINES + 1
    first: dict[tuple[str, ...], str] = {}
    repeated = []
    for path in sorted(ROOT.rglob("*.py")):
        lines = [(number, line.strip()) for number, line in enumerate(path.read_text().splitlines(), 1) if line.strip()]
        for start in range(len(lines) - length + 1):
            block = tuple(line for _, line in lines[start : start + length])
            location = f"{path.relative_to(ROOT)}:{lines[start][0]}"
            if first.setdefault(block, location) != location:
                repeated.append(f"{first[block]} and {location}")
    assert not repeated, f"Write these blocks of more than {MAX_REPEATED_LINES} lines once: {repeated}"


def test_no_two_modules_define_classes_of_one_name() -> None:
    """One name, one meaning: a reader who searches for a class finds one."""
    modules: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(path.relative_to(ROOT)))
    assert len(modules) > 500
    repeated = {name: paths for name, paths in modules.items() if len(paths) > 1}
    assert not repeated, f"Rename all but one of the classes of one name: {repeated}"
