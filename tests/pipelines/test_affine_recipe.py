"""`recipes/affine.yaml` for real: all eight environments, an adapter and the value network, with small numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from practicum.cli.main import main
from practicum.config.overrides import RECIPES
from practicum.config.pipeline import AFFINE_ENVIRONMENTS, AGENTGYM_ENVIRONMENTS

RECIPE = RECIPES / "affine.yaml"
ENVIRONMENTS = [*AFFINE_ENVIRONMENTS, *AGENTGYM_ENVIRONMENTS]
PAY = '''
def pay(task, action, step):
    """Something for every command, and for the end, in one world; nothing in the others."""
    return 1.0 if task.environment == "agentgym:babyai" else 0.0
'''


def shrunk(recipe: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The paper's recipe with few episodes, for a model with a short window; everything else as it is."""
    data = recipe["data"]
    data["affine"]["num_samples"], data["agentgym"]["num_episodes"] = 12, 20
    data["agentgym"]["max_episode_length"], data["max_response_tokens"] = 8, 12
    data["environment_args"] = {
        "affine:sat": {"levels": [1]}, "agentgym:webshop": {"products": 100, "observation": "short"},
        "agentgym:babyai": {"levels": [1, 2]},
    }  # fmt: skip
    recipe["training"] |= {"num_epochs": 1, "warmup_steps": 2}
    recipe["rl_training"] |= {"num_rollouts": 1, "rollout_batch_size": 5, "ppo_epochs": 2, "save_steps": 1}
    recipe["rl_training"]["reward_function"] = f"{folder / 'pay.py'}:pay"
    recipe["rl_training"]["overrides"] = ["data.curriculum.enable=true", "data.curriculum.field=level"]
    recipe["evaluation"]["num_eval_samples"] = 2
    return {**recipe, "model": {"path": "tiny"}, "output_dir": str(folder / "out")}


@pytest.mark.slow
def test_all_eight_environments_through_all_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pay.py").write_text(PAY)
    recipe, out = tmp_path / "small.yaml", tmp_path / "out"
    recipe.write_text(yaml.safe_dump(shrunk(yaml.safe_load(RECIPE.read_text()), tmp_path)))
    assert main(["pipeline", f"recipe={recipe}"]) == 0
    output = capsys.readouterr().out

    assert len(list((out / "collect").rglob("*__attempt_0.jsonl"))) == 32
    assert "Epoch 1: train_loss=" in output
    assert "Rollout 1/1: reward=" in output
    for rung in ("sft", "rl"):
        adapter = json.loads((out / rung / "model" / "adapter_config.json").read_text())
        assert (adapter["r"], adapter["lora_alpha"]) == (64, 128)
    step = json.loads((out / "rl" / "metrics.jsonl").read_text())
    assert step["critic/vf_loss"] > 0
    # Eight replies at most, each cut off (-0.05) or a command, then the end.
    assert 1.0 - 8 * 0.05 - 1e-9 <= step["reward/agentgym:babyai/mean"] <= 9.0
    assert all(
        -0.4 - 1e-9 <= step[f"reward/{name}/mean"] <= 0 for name in AGENTGYM_ENVIRONMENTS if "babyai" not in name
    )
    assert step["rollout/episodes"] == 5
    results = json.loads((out / "logs" / "evaluation_results.json").read_text())
    for rung in results["rungs"].values():
        assert sorted(rung["environments"]) == sorted(ENVIRONMENTS)
        assert all(row["n"] == 2 and row["errors"] == 0 for row in rung["environments"].values())
    assert set(results["table"]) == {*ENVIRONMENTS, "AgentGym", "Overall"}
