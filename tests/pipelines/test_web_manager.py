"""The training of a manager, with the smallest numbers that pass through every job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from benchmarks import web_manager


@pytest.mark.slow
def test_every_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    web_manager.main(["--out", str(tmp_path), "--smoke"])
    assert "| grpo-both |" in capsys.readouterr().out
    record = json.loads((tmp_path / "results-val.json").read_text())["default-0"]
    assert set(record["policies"]) == set(web_manager.POLICIES)
    assert {row["verdict"] for row in record["comparisons"].values()} == {"no difference shown"}
    case = tmp_path / "default-0"
    agent = yaml.safe_load((case / "grpo" / "manager" / "config.yaml").read_text())["agent"]
    assert agent["train_roles"] == ["manager"]
    assert agent["roles"]["worker"]["model"] == str(case / "guided" / "sft" / "model"), "the worker is frozen"
    assert {path.name for path in (case / "grpo" / "both" / "model" / "roles").iterdir()} == {"manager", "worker"}
    web_manager.main(["--out", str(tmp_path), "--smoke"])
    assert "$ practicum" not in capsys.readouterr().out, "finished stages are not run again"


def test_the_budget_is_checked() -> None:
    assert web_manager.read_budget(["reward=progress"], web_manager.SMOKE).reward == "progress"
    with pytest.raises(SystemExit, match="no 'steps'"):
        web_manager.read_budget(["steps=3"], web_manager.SMOKE)
