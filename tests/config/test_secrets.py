"""Secrets of the environment do not get into a run's configuration, which is written to disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from practicum.config.overrides import read_overrides, to_yaml
from practicum.config.train import TrainConfig
from practicum.errors import UserError


@pytest.mark.parametrize("text", ["${oc.env:HF_TOKEN}", "x-${oc.env:HF_TOKEN,none}", "${oc.decode:${oc.env:HF_TOKEN}}"])
def test_a_token_in_a_recipe_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"trainer:\n  experiment_name: '{text}'\n")
    with pytest.raises(UserError, match="trainer.experiment_name refers to the environment variable HF_TOKEN") as error:
        read_overrides(TrainConfig, [f"recipe={recipe}"])
    assert "very_secret" not in str(error.value)


def test_other_variables_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    recipe = tmp_path / "r.yaml"
    recipe.write_text("trainer:\n  default_local_dir: ${oc.env:SCRATCH}/runs\n")
    config = read_overrides(TrainConfig, [f"recipe={recipe}"]).config
    assert config.trainer.default_local_dir == "/scratch/me/runs"
    assert "/scratch/me/runs" in to_yaml(config)
