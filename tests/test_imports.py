"""Imports between the parts of the package go one way: from the command line down to tasks and errors.

A part is a folder of `src/practicum` or a module at its root. `LAYERS` lists them from the top to the bottom. A module
imports from its own part and from the layers below; parts of the same layer do not import each other. Every import
statement counts, also one inside a function or under `TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "practicum"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli",),
    ("practicum",),  # practicum/__init__.py, the public API
    ("pipeline", "quickstart", "report", "pytest_plugin", "rubric_manager"),
    ("training",),
    ("planner",),
    ("evaluation",),
    ("collector",),
    ("rollout_settings",),
    ("rollout_setup",),
    ("rollout",),
    ("serving",),
    ("agent",),
    ("policy",),
    ("engines", "environments"),
    ("kernels", "registry"),
    ("tools", "rewards"),
    ("data", "sandbox"),
    ("models",),
    ("chat",),
    ("algorithms", "config"),
    ("trajectory",),
    ("environment",),
    ("resources",),
    ("task",),
    ("utils",),
    ("errors",),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def module_name(path: Path) -> str:
    """The dotted name below `practicum`; "" for `practicum/__init__.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def part_of(module: str) -> str:
    return module.partition(".")[0] or "practicum"


def imported_names(path: Path) -> Iterator[str]:
    """Absolute dotted names of everything that a file imports, `from a import b` as `a.b`."""
    package = ("practicum", *path.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(name for name in (base, node.module) if name)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports() -> Iterator[tuple[str, str]]:
    """Every pair (importing module, imported module) whose parts differ."""
    for module, path in MODULES.items():
        for name in imported_names(path):
            if name.split(".")[0] != "practicum" or name == "practicum.__version__":
                continue
            target = name.removeprefix("practicum").removeprefix(".")
            while target not in MODULES:
                target = target.rpartition(".")[0]
            if part_of(target) != part_of(module):
                yield module, target


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {part_of(module) for module in MODULES}
    assert parts == set(LEVEL), (
        "Name each folder and root module of src/practicum once in LAYERS of this file: above everything that it "
        f"imports, below everything that imports it. Differing: {sorted(parts ^ set(LEVEL))}."
    )


def test_imports_go_downwards() -> None:
    upward = {pair for pair in imports() if LEVEL[part_of(pair[0])] >= LEVEL[part_of(pair[1])]}
    lines = [f"  practicum.{module} imports practicum.{target or '__init__'}" for module, target in upward]
    assert not lines, (
        "These imports go up or sideways in LAYERS of this file:\n"
        + "\n".join(sorted(lines))
        + "\nMove what both sides need into the lower part, pass it in as an argument, or move the importing code up."
    )
