"""What the benchmarks import from the package exists: they run rarely, and a name that has moved is found late."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


def imported(path: Path) -> list[tuple[str, str]]:
    """Pairs of a module of the package and a name that is imported from it."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [
        (node.module, alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "practicum"
        for alias in node.names
    ]


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_exists(path: Path) -> None:
    missing = []
    for module, name in imported(path):
        try:
            if not hasattr(importlib.import_module(module), name):
                importlib.import_module(f"{module}.{name}")
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] == "practicum":
                missing.append(f"{module}.{name}")
    assert not missing
