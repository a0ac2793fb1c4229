"""`practicum train --from-trajectories` as a person types it, with right and wrong input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from practicum.cli.main import main
from practicum.config.overrides import quote
from practicum.config.resolve import resolve_train
from practicum.data.store import read_episodes
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.training.logged_source import has_policy_logprobs
from practicum.training.micro_batches import MicroBatchLimits, unweighted_samples
from practicum.training.objective import compute_logprobs

HOLD = "actor_rollout_ref.actor.kl_loss_coef=0.1"
SMALL = ["actor_rollout_ref.model.path=tiny", "actor_rollout_ref.actor.optim.lr=1e-3", "data.train_batch_size=4",
         "data.val_batch_size=4", "agent.max_turns=2", "agent.max_tokens_per_turn=8", "trainer.logger=[]"]  # fmt: skip


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight tasks, solved by the expert and missed by chance."""
    out = tmp_path_factory.mktemp("attempts with 'quotes'")
    for policy in ("expert", "random"):
        arguments = ["collect", "--env", "math", "--env-arg", "levels=[1]", "--policy", policy, "--tasks", "8",
                     "--out", str(out), "--run-id", policy]  # fmt: skip
        assert main(arguments) == 0
    return out


@pytest.mark.parametrize("method", ["grpo", "bandit"])
def test_from_a_folder_to_a_model(
    method: str, attempts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "--from_trajectories", str(attempts), *SMALL, HOLD, f"trainer.default_local_dir={tmp_path}",
                 "trainer.experiment_name=run",
                 f"algorithm.offline.method={method}", "trainer.total_epochs=1", "trainer.save_freq=1"]  # fmt: skip
    assert main(arguments) == 0
    output = capsys.readouterr().out
    folder = tmp_path / "practicum" / "run"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert "val/success/mean" in lines[0]
    if method == "grpo":
        assert "those of the start policy are used instead" in output
        assert all(line["actor/grad_norm"] > 0 for line in lines[1:])
        assert "rollout/episodes" not in lines[1]
    else:
        assert "logged states have a single action" in output
        assert lines[1]["rollout/episodes"] == 32
    before, after = loader.load("tiny").model.state_dict(), load_file(folder / "last" / "model.safetensors")
    moved = any(not torch.equal(value, before[name]) for name, value in after.items())
    assert moved or method == "bandit"  # a newborn model hits no logged action
    assert main(arguments) == 0
    assert "Nothing to do" in capsys.readouterr().out


def test_the_flags_of_halo_write_an_adapter_into_the_folder_given(attempts: Path, tmp_path: Path) -> None:
    out = tmp_path / "lora" / "qwen3_4b_grpo_lora"
    arguments = ["train", "recipe=halo-grpo", "--base_model", "tiny", "--input_dir", str(attempts), "--output_dir",
                 str(out), "--top_percent", "0.5", "agent.environment=math", "agent.environment_args={levels:[1]}",
                 "agent.agent_type=hf", "agent.max_tokens_per_turn=8", "agent.num_chains=2", "data.train_batch_size=4",
                 "trainer.total_epochs=null", "trainer.total_training_steps=1", "trainer.logger=[]"]  # fmt: skip
    assert main(arguments) == 0
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (out / name).read_bytes() == (out / "model" / name).read_bytes()
    assert "top_percent: 0.5" in (out / "config.yaml").read_text()


def test_success_becomes_likelier_and_failure_less_so(attempts: Path, tmp_path: Path) -> None:
    arguments = ["train", "--from-trajectories", str(attempts), *SMALL, HOLD, f"trainer.default_local_dir={tmp_path}",
                 "trainer.experiment_name=run",
                 "trainer.val_before_train=false", "trainer.total_training_steps=8",
                 "actor_rollout_ref.actor.optim.lr=5e-5", "actor_rollout_ref.actor.entropy_coeff=0"]  # fmt: skip
    assert main(arguments) == 0
    episodes = list(read_episodes(attempts))
    assert not any(has_policy_logprobs(episode) for episode in episodes)
    samples = [sample for episode in episodes for sample in unweighted_samples(episode)]
    models = (loader.load(name).model for name in ("tiny", str(tmp_path / "practicum" / "run" / "model")))
    start, end = (
        torch.stack([v.mean() for v in compute_logprobs(Decoder(model), samples, MicroBatchLimits())])
        for model in models
    )
    solved = torch.tensor([episode.reward > 0 for episode in episodes])
    assert float((end - start)[solved].mean()) > 0
    assert float((end - start)[~solved].mean()) < float((end - start)[solved].mean())


def test_the_dry_run_says_what_follows(attempts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--dry-run", "--from-trajectories", str(attempts), "trainer.total_training_steps=3"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "adv_estimator: grpo" in shown
    assert "nothing is rolled out" in shown
    assert "1.2 times as likely as it was, or 0.8 times (the floor)" in shown
    assert main([*arguments, "algorithm.offline.method=bandit"]) == 0
    assert "furthest 20 % of episodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["algorithm.adv_estimator=gae"], "set algorithm.adv_estimator to one of grpo"),
        (
            ["actor_rollout_ref.actor.use_kl_loss=false", "actor_rollout_ref.actor.kl_loss_coef=0.001"],
            "must be held near its start",
        ),
        (["algorithm.offline.method=grop"], "Unknown algorithm.offline.method 'grop'. Did you mean 'grpo'?"),
        (["algorithm.filter_groups.enable=true"], "does not go with --from-trajectories: groups without a difference"),
        (["algorithm.use_kl_in_reward=true"], "does not go with --from-trajectories: logged rewards are compared"),
        (["actor_rollout_ref.actor.tis_imp_ratio_cap=2.0"], "against the log's own log-probs"),
        (["data.curriculum.enable=true"], "it follows the successes of the policy"),
        (["agent.environment=agentgym:textcraft"], "Validation would be on 'agentgym:textcraft', but the log is of"),
        (["agent.agent_type=react"], "The log's replies are in the format hf, not react; set agent.agent_type."),
        (["data.train_batch_size=99"], "fewer than the 99 of one step"),
    ],
)
def test_settings_that_a_log_cannot_honour(
    more: list[str], message: str, attempts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "--from-trajectories", str(attempts), *SMALL, HOLD, f"trainer.default_local_dir={tmp_path}",
                 "trainer.experiment_name=run",
                 "trainer.total_training_steps=1"]  # fmt: skip
    assert main([*arguments, *more]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_folders_that_teach_nothing(attempts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    equal_rewards, out = tmp_path / "alike", tmp_path / "out"
    shutil.copytree(attempts / "collect" / "expert", equal_rewards)
    (tmp_path / "empty").mkdir()
    for location, message in (
        (tmp_path / "none", "There is no folder"),
        (tmp_path / "empty", "There is no episode below"),
        (equal_rewards, "has episodes of different reward, so there is nothing to compare"),
    ):
        arguments = ["train", "--from-trajectories", str(location), "trainer.total_training_steps=1", *SMALL, HOLD,
                     f"trainer.default_local_dir={out}"]  # fmt: skip
        assert main(arguments) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()


def test_keys_of_a_log_without_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "algorithm.offline.method=bandit", "trainer.total_training_steps=1"]) == 2
    assert "algorithm.offline.method is for learning from a log" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a b", "it's", "x=y", "{a},b", "a\\'b", "a\\b", "$x", "end\\"])
def test_any_folder_can_be_named(name: str) -> None:
    assert resolve_train([f"data.from_trajectories={quote(name)}"]).config.data.from_trajectories == name
