"""Promotion through the gate or by force, the card, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.data.model_registry import ModelRegistry
from practicum.errors import UserError
from practicum.evaluation.promotion import promote
from practicum.rollout_settings import policy_identity

from .conftest import Make

GOOD, BAD = [1.0] * 90 + [0.0] * 10, [1.0] * 50 + [0.0] * 50


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with a model."""
    folder = tmp_path / "run"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    (folder / "config.yaml").write_text("a: 1\n")
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / "version.json").write_text('[{"commit": "abc"}]')
    return folder


@pytest.fixture
def results(tmp_path: Path, run: Path, make_result: Make) -> tuple[Path, Path]:
    """Files of the baseline's and the trained model's result: 50 and 90 of 100 solved."""
    baseline, trained = tmp_path / "baseline.json", tmp_path / "trained.json"
    make_result("base", BAD).write(baseline)
    settings = {"policy": policy_identity(str(run / "model"), None)}
    make_result("trained", GOOD, settings=settings).write(trained)
    return baseline, trained


def test_a_model_that_passes_the_gate_is_promoted_with_a_card(
    tmp_path: Path, run: Path, results: tuple[Path, Path]
) -> None:
    registry = ModelRegistry(tmp_path / "registry")
    card = promote(registry, "planner", str(run), *results).card
    assert card["gate"].startswith("deploy")
    assert card["forced"] is None
    assert card["panel"] == "panel"
    assert card["scores"]["trained"]["success_rate"] == 0.9
    assert card["scores"]["baseline"]["low"] < 0.5 < card["scores"]["baseline"]["high"]
    assert card["difference"]["points"] == pytest.approx(0.4)
    assert card["difference"]["low"] > 0
    assert card["lineage"]["run"] == str(run)
    assert set(card["lineage"]["sha256"]) == {"config.yaml", "version.json", "metrics.jsonl"}
    assert card["lineage"]["version"] == [{"commit": "abc"}]
    assert registry.history("planner")[0]["reason"] == "gate passed"


def test_a_model_that_does_not_pass_is_promoted_only_by_force_with_a_reason(
    tmp_path: Path, run: Path, results: tuple[Path, Path], make_result: Make
) -> None:
    registry = ModelRegistry(tmp_path / "registry")
    make_result("base", GOOD).write(results[0])
    with pytest.raises(UserError, match="not promoted, because the gate says: keep the baseline"):
        promote(registry, "planner", str(run), *results)
    with pytest.raises(UserError, match="not promoted"):
        promote(registry, "planner", str(run), *results, force="  ")
    assert registry.names() == []
    card = promote(registry, "planner", str(run), *results, force="a trial").card
    assert card["forced"] == "a trial"
    assert card["gate"].startswith("keep")
    assert registry.history("planner")[0]["reason"] == "forced: a trial"


def test_a_result_of_another_model_is_refused(tmp_path: Path, run: Path, results: tuple[Path, Path]) -> None:
    registry = ModelRegistry(tmp_path / "registry")
    (run / "model" / "config.json").write_text('{"trained": "again"}')
    with pytest.raises(UserError, match="whose files are not those of"):
        promote(registry, "planner", str(run), *results)
    with pytest.raises(UserError, match="whose files are not those of"):
        promote(registry, "planner", str(run), results[0], results[0])
    with pytest.raises(UserError, match="Give both results"):
        promote(registry, "planner", str(run), results[0])
    with pytest.raises(UserError, match="there are no results"):
        promote(registry, "planner", str(run))
    with pytest.raises(UserError, match="is no folder of a model"):
        promote(registry, "planner", "tiny", force="x")


def test_the_command_promotes_lists_and_goes_back(
    tmp_path: Path,
    run: Path,
    results: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    baseline, trained = map(str, results)
    assert main(["promote", str(run), "--name", "planner", "--baseline", baseline, "--trained", trained]) == 0
    assert "version 1 of 'planner' is current" in capsys.readouterr().out
    assert main(["promote", str(run), "--name", "planner", "--force", "second trial"]) == 0
    assert "forced: second trial" in capsys.readouterr().out
    assert main(["promote", "--list"]) == 0
    listed = capsys.readouterr().out
    assert "90.0 %" in listed
    assert listed.count("current") == 1
    assert main(["promote", "--rollback", "--name", "planner"]) == 0
    assert "version 1 of 'planner' is current again" in capsys.readouterr().out
    assert json.loads((tmp_path / "registry/planner/current/card.json").read_text())["version"] == 1
    assert main(["promote"]) == 2
    assert "Name the model to promote" in capsys.readouterr().err
