"""Two modes of the hierarchy on a few tasks in a real Chromium, through the command."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.environments.web.browser import EXECUTABLE

CONFIG = Path(__file__).parents[3] / "configs" / "web_matrix.yaml"


def test_two_modes_on_one_panel(tmp_path: Path) -> None:
    pytest.importorskip("playwright")
    if shutil.which(EXECUTABLE) is None:
        pytest.skip(f"needs {EXECUTABLE} (make setup installs it)")
    flags = ["--tasks", "2", "--attempts", "2", "--env-arg", 'sites="mail"', "--env-arg", "levels=[2]",
             "--env-arg", 'faults={"popup": 0.4}']  # fmt: skip
    modes = ["--experiment", "baseline_worker", "hierarchy_vac_macros"]
    assert main(["matrix", "--config", str(CONFIG), *modes, *flags, "--out", str(tmp_path)]) == 0
    alone, full = csv.DictReader((tmp_path / "matrix.csv").open())
    assert (alone["valid_tasks"], full["valid_tasks"]) == ("2", "2")
    assert float(full["success_rate"]) == 1.0
    assert float(full["recovery_rate"]) > 0, "dialogs were closed without the worker"
    assert float(full["cache_hit_rate"]) > 0, "the second attempt reads what the first one wrote"
    assert float(full["manager_call_rate"]) > 0
    assert alone["manager_call_rate"] == ""
    text = (tmp_path / "matrix.md").read_text()
    assert "## Parts of the hierarchy" in text
    assert "baseline_worker" in text
