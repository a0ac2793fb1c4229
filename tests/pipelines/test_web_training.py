"""`make web` in a real Chromium, with the smallest numbers that pass through every stage."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from benchmarks import web_training

from practicum.environments.web.browser import EXECUTABLE


@pytest.mark.skipif(shutil.which(EXECUTABLE) is None, reason=f"needs {EXECUTABLE} (make setup installs it)")
def test_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("playwright")
    out = tmp_path / "web"
    web_training.main(["--out", str(out), "--smoke"])
    rows = list(csv.DictReader((out / "matrix" / "matrix.csv").open()))
    assert [row["mode"] for row in rows] == ["zero", "bc", "dpo", "grpo"]
    assert all((row["valid_tasks"], row["init_or_agent_errors"]) == ("2", "0") for row in rows)
    record = json.loads((out / "results.json").read_text())
    assert set(record["policies"]) == {"zero", "bc", "dpo", "grpo"}
    assert set(record["comparisons"]) == {"zero → bc", "bc → dpo", "bc → grpo", "dpo → grpo"}
    choice = json.loads((out / "bc" / "choice.json").read_text())
    assert list(choice["validations"]) == ["1", "2"], "a checkpoint per epoch of one update"
    assert choice["validations"][str(choice["best"])] == max(choice["validations"].values())
    assert set(record["validations"]["grpo"]) == {"0", "1"}, "the BC model is GRPO's first validation"
    splits = {
        path.parent.name: {task["split"] for task in json.loads(path.read_text())["tasks"]}
        for path in (out / "bc" / "validations" / "step-1.run" / "panel.json", out / "matrix" / "bc.run" / "panel.json")
    }
    assert splits == {"step-1.run": {"val"}, "bc.run": {"test"}}
    pairs = [json.loads(line) for line in (out / "data" / "dpo.jsonl").read_text().splitlines()]
    assert pairs
    assert all(pair["chosen"] != pair["rejected"] for pair in pairs)
    assert "| zero → bc |" in capsys.readouterr().out
    web_training.main(["--out", str(out), "--smoke"])
    assert "$ practicum" not in capsys.readouterr().out, "finished stages are not run again"


def test_the_budget_is_checked() -> None:
    assert web_training.read_budget(["demonstrations=7", "bc_lr=1e-4"], web_training.SMOKE).bc_lr == 1e-4
    with pytest.raises(SystemExit, match="no 'epochs'"):
        web_training.read_budget(["epochs=3"], web_training.SMOKE)
