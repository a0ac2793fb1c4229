"""Runs in which several roles act: killed and resumed, they leave the bytes of an unbroken run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

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
    "worker": ["agent.train_roles=[worker]"],
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
    one = files(unbroken)
    assert_same_files(one, files(broken))
    adapters = [name for name in one if "roles/manager" in name and name.endswith("adapter_model.safetensors")]
    assert bool(adapters) == (mode == "an adapter each")
