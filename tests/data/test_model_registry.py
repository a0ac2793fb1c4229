"""The registry of promoted models: versions, the current one, the way back, damage and interruption."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from practicum.data import model_registry
from practicum.data.model_registry import ModelRegistry
from practicum.errors import UserError


def model(path: Path, weights: str = "w") -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_text(weights)
    return path


@pytest.fixture
def registry(tmp_path: Path) -> ModelRegistry:
    """A registry with versions 1 and 2 of `planner`."""
    result = ModelRegistry(tmp_path / "registry")
    result.promote("planner", model(tmp_path / "a", "first"), {"source": "a"}, "gate passed")
    result.promote("planner", model(tmp_path / "b", "second"), {"source": "b"}, "gate passed")
    return result


def weights(registry: ModelRegistry) -> str:
    return (registry.current("planner").model / "model.safetensors").read_text()


def test_a_promoted_model_is_current_and_its_card_has_the_hashes(registry: ModelRegistry) -> None:
    version = registry.current("planner")
    assert version.number == 2
    assert weights(registry) == "second"
    assert (registry.root / "planner" / "current" / "model" / "model.safetensors").read_text() == "second"
    card = version.card
    assert (card["name"], card["version"], card["source"]) == ("planner", 2, "b")
    assert set(card["files"]) == {"config.json", "model.safetensors"}
    assert registry.names() == ["planner"]
    assert [v.number for v in registry.versions("planner")] == [1, 2]


def test_rollback_goes_to_the_version_before_and_forward_by_number(registry: ModelRegistry) -> None:
    assert registry.rollback("planner", "it failed").number == 1
    assert weights(registry) == "first"
    with pytest.raises(UserError, match="no undamaged earlier version"):
        registry.rollback("planner", "again")
    assert registry.rollback("planner", "mended", 2).number == 2
    assert [(row["action"], row["from"], row["to"], row["reason"]) for row in registry.history("planner")] == [
        ("promote", None, 1, "gate passed"),
        ("promote", 1, 2, "gate passed"),
        ("rollback", 2, 1, "it failed"),
        ("rollback", 1, 2, "mended"),
    ]
    with pytest.raises(UserError, match="no undamaged version 9"):
        registry.rollback("planner", "x", 9)


def test_a_version_after_a_rollback_gets_a_new_number(registry: ModelRegistry, tmp_path: Path) -> None:
    registry.rollback("planner", "x")
    assert registry.promote("planner", model(tmp_path / "c"), {}, "y").number == 3


def test_a_damaged_version_is_not_served_and_not_gone_back_to(registry: ModelRegistry, tmp_path: Path) -> None:
    (registry.versions("planner")[1].model / "model.safetensors").write_text("edited")
    with pytest.raises(UserError, match="Version 2 of 'planner' is damaged .* --rollback"):
        registry.current("planner")
    registry.promote("planner", model(tmp_path / "c", "third"), {}, "y")
    assert registry.rollback("planner", "x").number == 1


def test_the_link_is_replaced_in_one_step(registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    replace = os.replace

    def watched(source: os.PathLike[str], target: os.PathLike[str]) -> None:
        if Path(target).name == "current":
            seen.append(weights(registry))
        replace(source, target)
        if Path(target).name == "current":
            seen.append(weights(registry))

    monkeypatch.setattr(model_registry.os, "replace", watched)
    registry.rollback("planner", "x")
    assert seen == ["second", "first"]


def test_a_promotion_that_is_interrupted_leaves_the_old_version_current(
    registry: ModelRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_registry, "seal", fail)
    with pytest.raises(UserError, match="No space left"):
        registry.promote("planner", model(tmp_path / "c"), {}, "y")
    assert weights(registry) == "second"
    assert sorted(os.listdir(registry.root / "planner" / "versions")) == ["0001", "0002"]


def test_what_is_no_model_or_no_name_is_refused(registry: ModelRegistry, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no model"):
        registry.promote("planner", tmp_path, {}, "x")
    for name in ("../x", "", "a/b"):
        with pytest.raises(UserError, match="is no name of a model"):
            registry.current(name)
    with pytest.raises(UserError, match="No model 'planer' is promoted .* Did you mean 'planner'"):
        registry.current("planer")
    with pytest.raises(UserError, match="nothing to go back from"):
        registry.rollback("other", "x")
    card = registry.versions("planner")[0].folder / "card.json"
    card.write_text(json.dumps({"format": "else"}))
    with pytest.raises(UserError, match="not a model card"):
        _ = registry.versions("planner")[0].card
