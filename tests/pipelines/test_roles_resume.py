"""Runs in which several roles act: killed and resumed, they leave the bytes of an unbroken run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from practicum.cli.main import main

from .test_resume import assert_same_files, files, train_in_process

TOY = Path(__file__).parents[2] / "docs" / "examples" / "manager_worker.py"
BASE = [
    f"agent.environment={TOY}:ManagerWorker",
    "agent.max_turns=2",
    "agent.num_chains=3",
    "agent.max_tokens_per_turn=4",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.path=tiny",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "data.train_batch_size=3",
    "data.val_batch_size=3",
    "trainer.total_training_steps=2",
    "trainer.save_freq=1",
    "trainer.test_freq=2",
    "trainer.val_before_train=false",
    "trainer.logger=[]",
]
MODES = {
    "worker": [],  # the environment's first role is trained where nothing is said
    "manager": ["agent.train_roles=[manager]", "agent.roles.manager.temperature=0.7"],
    "an adapter each": [
        "agent.train_roles=[worker,manager]",
        "agent.roles.worker.adapter=true",
        "agent.roles.manager.adapter=true",
        "actor_rollout_ref.model.lora_rank=4",
        "algorithm.role_credit=own",
    ],
}


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_run_of_several_roles_equals_an_unbroken_one(mode: str, tmp_path: Path) -> None:
    overrides = [*BASE, *MODES[mode]]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert train_in_process(unbroken, overrides) == 0
    assert train_in_process(broken, overrides, ("episode", 12)) == -signal.SIGKILL
    assert train_in_process(broken, overrides) == 0
    expected = files(unbroken)
    assert_same_files(expected, files(broken))
    adapters = [name for name in expected if "roles/manager" in name and name.endswith("adapter_model.safetensors")]
    assert bool(adapters) == (mode == "an adapter each")


def test_roles_are_collected_and_evaluated_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--env", f"{TOY}:ManagerWorker", "--tasks", "4", "--max-turns", "2", "--max-tokens", "4"]
    collected = ["collect", *common, "--policy", "null", "--role", "worker=expert", "--out", str(tmp_path)]
    assert main([*collected, "--role", "manager=expert"]) == 0
    assert "4 success; mean reward 1.000" in capsys.readouterr().out
    assert main([*collected, "--role", "judge=expert", "--run-id", "other"]) == 2
    assert "has no role 'judge': it has worker, manager" in capsys.readouterr().err
    run = tmp_path / "run"
    assert main(["train", *BASE, *MODES["an adapter each"], "trainer.total_training_steps=1",
                 f"trainer.default_local_dir={run}", "trainer.experiment_name=x"]) == 0  # fmt: skip
    out = tmp_path / "result.json"
    trained = str(run / "practicum" / "x" / "model")
    assert main(["eval", *common, "--policy", trained, "--out", str(out)]) == 0
    assert out.is_file()


def test_a_dry_run_of_a_run_that_exists_has_the_roles_in_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", *BASE, "trainer.total_training_steps=1", f"trainer.default_local_dir={tmp_path}"]
    command += ["trainer.experiment_name=x", "trainer.test_freq=-1"]
    assert main(command) == 0
    assert main([*command, "--dry-run"]) == 0
    assert main([*command, "agent.train_roles=[manager]", "--dry-run"]) == 2
    assert "holds a run with agent.train_roles=['worker'], not ['manager']" in capsys.readouterr().err
