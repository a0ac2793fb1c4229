"""The built wheel, in a new virtual environment and an empty folder: everything a command needs comes with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import urllib.request
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`practicum` of the wheel; its dependencies are those of this environment, without our own package."""
    folder = tmp_path_factory.mktemp("wheel")
    source, environment = folder / "source", folder / "venv"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)], check=True)
    venv.create(environment, symlinks=True, with_pip=False)
    packages = next((environment / "lib").glob("python*/site-packages"))
    (wheel,) = folder.glob("practicum-*.whl")
    # Without --ignore-installed pip would first uninstall an editable install from the environment that runs the tests.
    install = [*pip, "install", "--ignore-installed", "--no-deps", "--no-index", "--prefix", str(environment)]
    subprocess.run([*install, str(wheel)], check=True)
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    script = environment / "bin" / "practicum"
    lines = script.read_text().splitlines()
    script.write_text("\n".join([f"#!{environment / 'bin' / 'python'}", *lines[1:]]) + "\n")
    return script


def run(command: Path, folder: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([command, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_is_the_wheels(command: Path, tmp_path: Path) -> None:
    python = command.with_name("python")
    location = run(python, tmp_path, "-c", "import practicum, practicum.training.build; print(practicum.__file__)")
    assert location.startswith(str(command.parents[1]))


def test_recipes_come_with_the_wheel(command: Path, tmp_path: Path) -> None:
    assert "adv_estimator: grpo" in run(command, tmp_path, "train", "recipe=math-tiny", "--dry-run")
    assert list(tmp_path.iterdir()) == []


SMALL_QUICKSTART = """
import sys
from dataclasses import replace

import practicum.quickstart as quickstart
from practicum.cli.main import main

make_plan = quickstart.default_plan


def small_plan(*arguments):
    plan = make_plan(*arguments)
    sft = replace(plan.sft, num_epochs=1, check_every=2)
    return replace(plan, panel=12, check_tasks=4, sft=sft, rl=replace(plan.rl, total_training_steps=2))


quickstart.default_plan = small_plan
sys.exit(main(["quickstart", "--demonstrations", "32"]))
"""


@pytest.mark.parametrize("size", ["small", "whole"])
def test_quickstart_report_and_live_page(size: str, command: Path, tmp_path: Path) -> None:
    """`small` has the same stages as the command with fewer tasks and steps."""
    if size == "whole":
        run(command, tmp_path, "quickstart")
    else:
        run(command.with_name("python"), tmp_path, "-c", SMALL_QUICKSTART)
    assert json.loads((tmp_path / "runs" / "quickstart-0" / "summary.json").read_text())["rl"]["n"] >= 12
    assert "1 run, " in run(command, tmp_path, "report", "runs")
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")[:1000]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen(
        [command, "ui", "--port", "0"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address is not None
        with urllib.request.urlopen(address[0]) as page:
            assert b"<html" in page.read()[:1000]
    finally:
        server.terminate()
        server.communicate(timeout=30)
