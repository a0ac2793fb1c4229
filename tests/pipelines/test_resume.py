"""Exact resume: a run that was cut short again and again equals one that was not, byte for byte."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from pathlib import Path

import pytest

from practicum.data.run_folder import damage_of
from practicum.training.checkpoint import Checkpoints
from practicum.training.estimators import ESTIMATORS

from .resume_child import PowerCut, cut_power, train_until

STEPS = 3
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
    "trainer.save_freq=2",
    "trainer.test_freq=3",
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
                  "actor_rollout_ref.actor.policy_loss.loss_mode=gspo", "algorithm.gamma=0.9",
                  f"algorithm.group_reward.name={Path(__file__).with_name('resume_child.py')}:unlike_the_others"],
    "reinforce_plus_plus": ["actor_rollout_ref.actor.tis_imp_ratio_cap=2.0"],
    "reinforce_plus_plus_baseline": ["agent.environment_args.levels=[1,2]", "data.curriculum.enable=true",
                                     "data.curriculum.window=8", "data.curriculum.threshold=0.1"],
}  # fmt: skip
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["practicum.training.build", "transformers.models.llama.modeling_llama"])


def train_in_process(folder: Path, overrides: list[str], moment: tuple[str, int] | None = None) -> int | None:
    """Continue a run in a process of its own, which is killed at `moment`; its exit code."""
    child = PROCESSES.Process(target=train_until, args=(str(folder), overrides, moment))
    child.start()
    child.join(300)
    return child.exitcode


def files(folder: Path) -> dict[str, bytes]:
    """All files of a run, without what depends on clock or commit and what a killed process did not finish."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in ("timing.jsonl", "config.yaml", "version.json")
        and not path.name.startswith(".writing-")
    }


def assert_same_files(expected: dict[str, bytes], actual: dict[str, bytes]) -> None:
    assert expected.keys() == actual.keys()
    assert [name for name in expected if expected[name] != actual[name]] == []


@pytest.mark.parametrize("estimator", list(ESTIMATORS))
def test_a_run_that_was_cut_short_equals_an_unbroken_one(estimator: str, tmp_path: Path) -> None:
    overrides = [*BASE, f"algorithm.adv_estimator={estimator}", *EXTRAS.get(estimator, [])]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    train_until(str(unbroken), overrides)
    # After the first checkpoint, and for one of them before it too.
    for moment in [("update", 2)] * (estimator == "grpo") + [("update", STEPS)]:
        with pytest.raises(PowerCut):
            train_until(str(broken), overrides, moment, cut_power)
    train_until(str(broken), overrides)
    expected = files(unbroken)
    assert_same_files(expected, files(broken))
    assert any("actor_optimizer" in name for name in expected)
    assert Checkpoints(unbroken / "practicum" / "run").steps()[-1] == STEPS
    shutil.rmtree(tmp_path)


def test_a_killed_run_equals_an_unbroken_one(tmp_path: Path) -> None:
    """SIGKILL inside a rollout, an update and the writing of a checkpoint, before the first checkpoint and after it."""
    overrides = [*BASE, "algorithm.adv_estimator=gae", *EXTRAS["gae"]]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert train_in_process(unbroken, overrides) == 0
    for moment in (("episode", 9), ("checkpoint", 3), ("update", STEPS)):
        assert train_in_process(broken, overrides, moment) == -signal.SIGKILL, moment
    assert train_in_process(broken, overrides) == 0
    assert_same_files(files(unbroken), files(broken))


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    overrides = [*BASE, "algorithm.adv_estimator=grpo", "trainer.val_before_train=false", "trainer.test_freq=-1"]
    train_until(str(tmp_path / "a"), overrides)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    folder = tmp_path / "b" / "practicum" / "run"
    newest = Checkpoints(folder).path(STEPS)
    weights = newest / "actor_optimizer.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1  # one bit
    weights.write_bytes(data)
    assert damage_of(newest) == "actor_optimizer.safetensors is not what was written"
    checkpoint, complaints = Checkpoints(folder).newest()
    assert checkpoint is not None
    assert checkpoint.name == "global_step_2"
    assert "global_step_3' is damaged" in complaints[0]
    train_until(str(tmp_path / "b"), overrides)  # continues from step 2 and writes step 3 again
    assert files(tmp_path / "a") == files(tmp_path / "b")
