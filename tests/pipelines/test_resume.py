"""Exact resume: a run that was killed again and again equals one that was not, byte for byte."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import signal
from pathlib import Path

import pytest

from practicum.data.checkpoint_folder import damage_of
from practicum.training.checkpoint import Checkpoints
from practicum.training.estimators import ESTIMATORS

from .resume_child import leg

STEPS = 12
BASE = [
    f"agent.environment={Path(__file__).with_name('resume_child.py')}:Jittery",
    "agent.environment_args.levels=[1]",
    "agent.max_turns=2",
    "agent.num_chains=3",
    "agent.max_tokens_per_turn=8",
    "actor_rollout_ref.model.path=tiny",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=512",
    "critic.optim.lr=1e-3",
    "data.train_batch_size=4",
    "data.val_batch_size=4",
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=3",
    "trainer.test_freq=4",
    "trainer.save_total_limit=2",
    "trainer.logger=[]",
]
EXTRAS = {
    "grpo": ["actor_rollout_ref.actor.ppo_epochs=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
             "actor_rollout_ref.actor.optim.warmup_style=cosine"],
    "rloo": ["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=100",
             "actor_rollout_ref.actor.use_kl_loss=false"],
    "gae": ["critic.model.path=tiny", "trainer.critic_warmup=2"],
    "turn_gae": ["algorithm.turn_rewards=true", "critic.ppo_mini_batch_size=2"],
    "flow_grpo": ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=2",
                  "actor_rollout_ref.actor.policy_loss.loss_mode=gspo"],
    "reinforce_plus_plus": ["actor_rollout_ref.actor.tis_imp_ratio_cap=2.0"],
    "reinforce_plus_plus_baseline": ["agent.environment_args.levels=[1,2]", "data.curriculum.enable=true",
                                     "data.curriculum.window=8", "data.curriculum.threshold=0.1"],
}  # fmt: skip
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["practicum.training.build", "transformers.models.llama.modeling_llama"])


def run_leg(folder: Path, overrides: list[str], kill: tuple[str, int] | None = None) -> int | None:
    child = PROCESSES.Process(target=leg, args=(str(folder), overrides, kill))
    child.start()
    child.join(300)
    return child.exitcode


def everything(folder: Path) -> dict[str, bytes]:
    """All that a run leaves, except what the clock had a hand in."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("timing.jsonl", "config.yaml")
    }


@pytest.mark.parametrize("estimator", list(ESTIMATORS))
def test_a_killed_run_equals_an_unbroken_one(estimator: str, tmp_path: Path) -> None:
    overrides = [*BASE, f"algorithm.adv_estimator={estimator}", *EXTRAS.get(estimator, [])]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run_leg(whole, overrides) == 0
    dice = random.Random(f"kill/{estimator}")
    # Inside a rollout, an update and a checkpoint write; early (before any checkpoint) and late.
    moments = [
        ("episode", dice.randint(1, 24)),
        ("checkpoint", dice.randint(1, 6)),
        ("episode", dice.randint(30, 45)),
        ("tick", dice.randint(1, 3)),
        ("checkpoint", dice.randint(1, 6)),
        ("tick", dice.randint(4, 8)),
    ]
    for moment in moments:
        assert run_leg(broken, overrides, moment) == -signal.SIGKILL, moment
    assert run_leg(broken, overrides) == 0
    one, two = everything(whole), everything(broken)
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []
    assert any("actor_optimizer" in name for name in one)
    steps = Checkpoints(whole / "practicum" / "run").steps()
    assert steps[-1] == STEPS
    shutil.rmtree(tmp_path)


def test_a_torn_or_edited_checkpoint_is_passed_over(tmp_path: Path) -> None:
    overrides = [*BASE, "algorithm.adv_estimator=grpo", "trainer.val_before_train=false", "trainer.test_freq=-1"]
    assert run_leg(tmp_path / "a", overrides) == 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    folder = tmp_path / "b" / "practicum" / "run"
    newest = Checkpoints(folder).path(STEPS)
    weights = newest / "actor_optimizer.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1  # one bit
    weights.write_bytes(data)
    assert damage_of(newest) == "actor_optimizer.safetensors is not what was written"
    found, complaints = Checkpoints(folder).newest()
    assert found is not None
    assert found.name == "global_step_9"
    assert "global_step_12' is damaged" in complaints[0]
    assert run_leg(tmp_path / "b", overrides) == 0  # goes on from step 9 and writes step 12 again
    assert everything(tmp_path / "a") == everything(tmp_path / "b")
