"""The option `--trained-policy`: one test, run with heuristics and with the promoted model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from practicum.data.model_registry import ModelRegistry
from practicum.models import tiny

TEST = """
import asyncio, os

def test_the_planner(htdag_planner):
    assert (htdag_planner.policy is not None) == bool(os.environ.get("WANTED"))
    if htdag_planner.policy is None:
        assert len(asyncio.run(htdag_planner.decompose_task("buy a lamp"))) == 4
    else:
        assert htdag_planner.policy.ref.model.endswith("versions/0001/model")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a test and a promoted model."""
    monkeypatch.delenv("HTDAG_USE_TRAINED_POLICY", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # quicker
    (tmp_path / "test_planner.py").write_text(TEST)
    tiny.build(tmp_path / "model")
    ModelRegistry(tmp_path / "registry").promote("htdag", tmp_path / "model", {}, "a test")
    monkeypatch.setenv("HTDAG_REGISTRY", str(tmp_path / "registry"))
    return tmp_path


def run(folder: Path, *options: str) -> int:
    """Run the test of the folder in a pytest of its own, in this process; return its exit code."""
    plain = ["-p", "no:cacheprovider", "-p", "practicum.pytest_plugin", "-c", os.devnull, "--import-mode=importlib"]
    return pytest.main(["-q", "--rootdir", str(folder), *plain, str(folder / "test_planner.py"), *options])


def test_the_flag_switches_between_heuristics_and_the_promoted_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(folder) == 0
    monkeypatch.setenv("WANTED", "1")
    assert run(folder, "--trained-policy") == 0
    monkeypatch.setenv("HTDAG_USE_TRAINED_POLICY", "true")
    assert run(folder) == 0


def test_without_a_promoted_model_the_option_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HTDAG_REGISTRY", str(folder / "nothing"))
    assert run(folder, "--trained-policy") == 1
    assert "No model 'htdag' is promoted" in capfd.readouterr().out
