"""Which model of a folder is evaluated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from practicum.errors import UserError
from practicum.evaluation.policy_ref import find


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def adapter(folder: Path, base: str | None) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    return folder


def test_rl_before_sft_before_base(tmp_path: Path) -> None:
    run = tmp_path / "run"
    model(run / "base" / "model")
    assert find(str(run)).stage == "base"
    model(run / "sft" / "model")
    assert find(str(run)).stage == "sft"
    model(run / "dpo_final")
    assert find(str(run)).stage == "dpo"
    result = model(run / "rl" / "model")
    assert (find(str(run)).stage, find(str(run)).model) == ("rl", str(result))
    assert find(str(result)).stage == "model"


def test_paper_003s_folders(tmp_path: Path) -> None:
    model(tmp_path / "sft_final")
    assert find(str(tmp_path)).stage == "sft"
    adapter(tmp_path / "rl_final", "tiny")
    result = find(str(tmp_path))
    assert (result.stage, result.model, result.adapter) == ("rl", "tiny", str(tmp_path / "rl_final"))


def test_a_stages_own_folder_and_its_metrics(tmp_path: Path) -> None:
    model(tmp_path / "model")
    assert find(str(tmp_path)).run is None
    (tmp_path / "metrics.jsonl").write_text("")
    assert find(str(tmp_path)).run == str(tmp_path)
    assert find(str(tmp_path / "model")).run == str(tmp_path)


def test_the_model_beneath_an_adapter(tmp_path: Path) -> None:
    adapter(tmp_path / "a", "some/base")
    assert find(str(tmp_path / "a")).model == "some/base"
    assert find(str(tmp_path / "a"), base="tiny").model == "tiny"
    adapter(tmp_path / "b", None)
    with pytest.raises(UserError, match="name it with --base"):
        find(str(tmp_path / "b"))


def test_names_are_not_searched(tmp_path: Path) -> None:
    assert find("expert").stage == "scripted"
    assert find("tiny").stage == "model"
    assert find("anything", url="http://localhost:1/v1").stage == "server"
    with pytest.raises(UserError, match="holds no model"):
        find(str(tmp_path))
