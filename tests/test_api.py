"""The public API of `practicum/__init__.py`: its names, and what importing it loads."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

import practicum


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_loads_nothing_else() -> None:
    added = run("import sys; before = set(sys.modules); import practicum; print(*sorted(set(sys.modules) - before))")
    loaded = {name.partition(".")[0] for name in added.split()}
    assert "practicum" in loaded
    assert loaded <= {"practicum"} | set(sys.stdlib_module_names)
    assert [name for name in added.split() if name.startswith("practicum.")] == []


def test_the_nouns_load_without_the_heavy_packages() -> None:
    code = (
        "import sys; from practicum import Environment, Task, Trajectory, UserError, tool, reward; print(*sys.modules)"
    )
    heavy = {"torch", "transformers", "scipy", "numpy", "hydra", "omegaconf"}
    assert heavy & set(run(code).split()) == set()


def test_every_public_name_is_there() -> None:
    assert {"Task", "Environment", "Trajectory", "tool", "reward", "collect", "evaluate", "compare", "train", "sft",
            "dpo"} <= set(practicum.__all__)  # fmt: skip
    for name in practicum.__all__:
        assert getattr(practicum, name).__name__ == name
        assert getattr(practicum, name).__doc__
    assert set(practicum.__all__) <= set(dir(practicum))
    with pytest.raises(AttributeError, match="no attribute 'colect'"):
        practicum.colect  # type: ignore[attr-defined]  # noqa: B018


def test_help_answers_in_under_three_tenths_of_a_second() -> None:
    def seconds() -> float:
        """Of processor time: what else the machine does must not count."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "practicum.cli", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.3
