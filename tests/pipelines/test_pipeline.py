"""`practicum pipeline`: one command, whole, skipped where done, killed and resumed."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from practicum.cli.main import main
from practicum.config.pipeline import AGENTGYM_ENVIRONMENTS, PipelineConfig
from practicum.errors import UserError
from practicum.pipeline import log, stages
from practicum.pipeline.log import PipelineLog
from practicum.training import settings

from .pipeline_child import ending_at
from .resume_child import PowerCut, cut_power

RECIPE = """
seed: 0
model: {path: tiny}
data:
  affine: {num_samples: 10, environments: ["affine:sat"]}
  agentgym: {num_episodes: 10, max_episode_length: 2, environments: ["math"]}
  environment_args:
    affine:sat: {levels: [1], n: 3, notation: numbers}
    math: {levels: [1]}
  max_response_tokens: 10
training: {use_lora: false, num_epochs: 2, batch_size: 4, gradient_accumulation_steps: 1, learning_rate: 1.0e-3,
  warmup_steps: 2, bf16: false, gradient_checkpointing: false, save_steps: 3, eval_steps: 5}
rl_training: {num_rollouts: 3, rollout_batch_size: 4, ppo_epochs: 2, learning_rate: 1.0e-4, save_steps: 1, reward: null}
evaluation: {num_eval_samples: 5}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipes") / "small.yaml"
    path.write_text(RECIPE)
    return path


def leg(recipe: Path, out: Path) -> int:
    """The pipeline in this process, on one thread as in its own; its exit code."""
    torch.set_num_threads(1)
    return main(["pipeline", f"recipe={recipe}", f"output_dir={out}"])


def killed_leg(recipe: Path, out: Path, part: str, count: int) -> int:
    """The pipeline in a process of its own, which dies on the way; its exit code."""
    child = str(Path(__file__).with_name("pipeline_child.py"))
    command = [sys.executable, child, part, str(count), f"recipe={recipe}", f"output_dir={out}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


def scores(out: Path) -> dict[str, Any]:
    """What every examination found, without the clock."""
    matches = {}
    for path in sorted(out.glob("eval/*/*.json")):
        full = json.loads(path.read_text())
        matches[str(path.relative_to(out))] = [
            full["panel"], [{**row, "seconds": None} for row in full["individual_results"]]
        ]  # fmt: skip
    return matches


@pytest.fixture(scope="module")
def finished(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, threads = tmp_path_factory.mktemp("pipeline") / "whole", torch.get_num_threads()
    assert leg(recipe, out) == 0
    torch.set_num_threads(threads)
    return out


def test_every_stage_leaves_its_results(finished: Path, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list((finished / "collect").rglob("*__attempt_0.jsonl"))) == 20
    assert len((finished / "rl" / "metrics.jsonl").read_text().splitlines()) == 3
    assert "success/affine:sat/mean" in json.loads((finished / "rl" / "metrics.jsonl").read_text().splitlines()[0])
    results = json.loads((finished / "logs" / "evaluation_results.json").read_text())
    assert list(results["rungs"]) == ["base", "sft", "rl"]
    row = results["rungs"]["rl"]["environments"]["affine:sat"]
    assert {"accuracy", "mean_reward", "std_reward", "median_reward", "success_rate", "confidence_interval"} < set(row)
    assert row["n"] == 5
    assert set(results["table"]) == {"affine:sat", "math", "Overall"}
    assert set(results["stages"]) == set(stages.STAGES)
    assert all(spent["finished"] and spent["peak_mb"] > 50 for spent in results["stages"].values())
    baseline = json.loads((finished / "logs" / "baseline_results.json").read_text())
    assert baseline["environments"] == results["rungs"]["base"]["environments"]
    before = (finished / "rl" / "metrics.jsonl").stat().st_mtime_ns
    assert main(["pipeline", f"recipe={recipe}", f"output_dir={finished}"]) == 0
    output = capsys.readouterr().out
    assert output.count("done before") == 6
    assert "intervals of" in output
    assert (finished / "rl" / "metrics.jsonl").stat().st_mtime_ns == before
    assert max(map(len, output.splitlines()[:-1])) <= 120
    # RL, then SFT, then base: what `practicum eval --policy OUT` finds.
    from practicum.evaluation.policy_ref import find

    assert (find(str(finished)).stage, find(str(finished)).name) == ("rl", str(finished / "rl" / "model"))


def test_a_stage_begins_without_the_models_of_the_one_before(tmp_path: Path) -> None:
    """Trainings end in reference cycles, and rollouts exclude them from garbage collection."""

    class Model:
        pass

    usage = PipelineLog(tmp_path)
    with usage.stage("sft"):
        model = Model()
        model.own = model  # type: ignore[attr-defined]
        reference = weakref.ref(model)
        gc.freeze()
        del model
    assert reference() is not None
    with usage.stage("eval-sft"):
        assert reference() is None


class FakeCuda:
    """A GPU's counters, in bytes."""

    def __init__(self) -> None:
        self.allocated = self.peak = 0

    def allocate(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def memory_allocated(self) -> int:
        return self.allocated

    def max_memory_allocated(self) -> int:
        return self.peak

    max_memory_reserved = max_memory_allocated

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.allocated


def test_a_stage_says_what_was_on_the_gpu_when_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeCuda()
    monkeypatch.setattr(log, "available_cuda", lambda: gpu)
    usage = PipelineLog(tmp_path)
    with usage.stage("sft"):
        gpu.allocate(300_000_000)
    gpu.allocate(-290_000_000)
    with usage.stage("eval-sft"):
        gpu.allocate(20_000_000)
    record = json.loads((tmp_path / "stages.json").read_text())
    assert [(s["gpu_start_mb"], s["gpu_peak_mb"]) for s in record.values()] == [(0, 300), (10, 30)]


def test_cut_short_in_every_stage_and_resumed(
    finished: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collecting, SFT and evaluation end by an exception in this process, RL by SIGKILL in its own."""
    out, threads = tmp_path / "cut", torch.get_num_threads()
    for part, count in (("/collect/math/", 4), ("/sft/global_step", 1), ("/eval/sft/", 3)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", ending_at(part, count, cut_power))
            with pytest.raises((PowerCut, BaseExceptionGroup)):
                leg(recipe, out)
    assert killed_leg(recipe, out, "/rl/global_step", 2) == -signal.SIGKILL
    assert leg(recipe, out) == 0
    torch.set_num_threads(threads)
    for name in ("sft/metrics.jsonl", "rl/metrics.jsonl", "sft/model/model.safetensors", "rl/model/model.safetensors"):
        assert (out / name).read_bytes() == (finished / name).read_bytes(), name
    assert scores(out) == scores(finished)
    starts = {name: spent["starts"] for name, spent in json.loads((out / "stages.json").read_text()).items()}
    assert starts == {"collect": 2, "eval-base": 1, "sft": 2, "eval-sft": 2, "train": 2, "eval-rl": 1}


def test_another_pipeline_is_not_written_over(finished: Path, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = ["pipeline", f"recipe={recipe}", f"output_dir={finished}", "rl_training.gamma=0.5"]
    assert main(changed) == 2
    assert "holds a pipeline with rl_training.gamma=0.99, not 0.5" in capsys.readouterr().err


def test_what_a_later_stage_reads_may_change_until_it_begins(
    finished: Path, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    requests = ["pipeline", f"recipe={recipe}", f"output_dir={out}"]
    spent = json.loads((out / "stages.json").read_text())
    (out / "stages.json").write_text(json.dumps({name: spent[name] for name in ("collect", "eval-base", "sft")}))
    (out / "pipeline.yaml").write_text((finished / "pipeline.yaml").read_text().replace(str(finished), str(out)))
    assert main([*requests, "rl_training.gamma=0.5", "--until", "sft"]) == 0  # practice has not begun
    assert "gamma: 0.5" in (out / "pipeline.yaml").read_text()
    assert main([*requests, "training.learning_rate=0.5", "--until", "sft"]) == 2  # imitation has
    assert "holds a pipeline with training.learning_rate=" in capsys.readouterr().err


def test_tasks_that_are_missing_are_said_before_anything_is_played(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = ["pipeline", f"recipe={recipe}", f"output_dir={tmp_path / 'out'}", "evaluation.num_eval_samples=500"]
    assert main(requests) == 2
    output = capsys.readouterr()
    assert "127 different 'test' tasks" in output.err
    assert "collect" not in output.out
    assert not (tmp_path / "out").exists()  # so that the same folder serves once the number is right


def test_the_papers_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    config = stages.resolve(["recipe=affine"]).config
    assert sum(stages.demonstrations(config).values()) == 15_000
    train = stages.rl_config(config)
    assert train.algorithm.adv_estimator == "gae"
    assert (train.algorithm.gamma, train.algorithm.lam) == (0.99, 0.95)
    assert train.algorithm.turn_rewards
    assert settings.rl_settings(train, 1).estimation.bootstraps
    config.rl_training.gamma = 1.0  # then a cut-off episode's value has no bound
    assert not settings.rl_settings(stages.rl_config(config), 1).estimation.bootstraps
    assert train.actor_rollout_ref.actor.ppo_epochs == train.critic.ppo_epochs == 4
    assert train.actor_rollout_ref.model.lora_adapter_path == "runs/affine/sft/model"
    assert set(train.agent.environment_args["environments"]) == set(AGENTGYM_ENVIRONMENTS)
    assert config.training.lora_r == 64
    assert main(["pipeline", "recipe=affine", "--dry-run"]) == 0
    assert "affine:sat 3334, affine:abd 3333, affine:ded 3333" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rl_training.vf_coef=-1.0"], "rl_training.vf_coef=-1.0: it must be at least 0"),
        (["rl_training.algorithm=grpo"], re.escape("\"rl_training.overrides=['algorithm.adv_estimator=grpo']\"")),
        (["data.affine.environments=[]", "data.agentgym.environments=[]"], "Say what to learn"),
        (["data.affine.environments=['affine:set']"], "Unknown environment 'affine:set'"),
        (["rl_training.environments=['code']"], "'code', which data does not"),
        (["rl_training.overrides=['agent.environment=math']"], "set by the pipeline itself"),
        (["rl_training.overrides=['agent.init_args.environment=math']"], "set by the pipeline itself"),
        (["rl_training.overrides=['algorithm.adv_estimator=grppo']"], "Did you mean 'grpo'"),
        (["rl_training.overrides=['algorithm.adv_estimator=grpo']"], "num_chains must be at least 2"),
        (
            ["rl_training.kl_penalty=0.1", "rl_training.overrides=['actor_rollout_ref.actor.kl_loss_type=k']"],
            "Unknown KL kind 'k'",
        ),
        (["rl_training.overrides=[algorithm.adv_estimator=grpo]"], re.escape("\"KEY=['A=B']\" for a list")),
        (["rl_training.reward=shapd"], "Did you mean 'shaped'"),
        (["training.scheduler_type=cosin"], "Did you mean 'cosine'"),
        (["training.fp16=true"], "use training.bf16=true"),
        (["training.num_epochs=0"], "at least 1"),
        (["data.val_split=10"], "data.val_split=10.0: it must be"),
        (["evaluation.confidence=95"], "evaluation.confidence=95.0: it must be above 0 and below 1"),
        (["rl_training.overrides=['algorithm.gama=1']"], "Did you mean 'algorithm.gamma'"),
        (["data.affine.num_sample=3"], "Did you mean 'data.affine.num_samples'"),
    ],
)
def test_what_cannot_work_is_said_at_once(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        stages.resolve(overrides)


def test_tracking_and_the_value_networks_rate_reach_the_rl_stage() -> None:
    requests = ["rl_training.value_learning_rate=2e-4", "tracking.use_wandb=true", "tracking.wandb_project=mine"]
    train = stages.rl_config(stages.resolve(requests).config)
    assert train.critic.optim.lr == 2e-4
    assert (train.trainer.logger, train.trainer.project_name) == (["wandb"], "mine")
    assert stages.rl_config(stages.resolve([]).config).trainer.logger == []


def test_another_estimator_as_the_message_says() -> None:
    config = stages.resolve(
        ["rl_training.overrides=['algorithm.adv_estimator=grpo']", "rl_training.num_chains=8"]
    ).config
    assert stages.rl_config(config).algorithm.adv_estimator == "grpo"


def test_a_reward_that_an_environment_lacks_is_said_before_anything_is_played(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["pipeline", f"recipe={recipe}", f"output_dir={out}", "rl_training.reward=shaped"]) == 2
    assert "Unknown reward 'shaped'" in capsys.readouterr().err  # math has rewards of its own
    assert not out.exists()


def test_what_is_examined_may_change_until_the_first_examination(tmp_path: Path) -> None:
    def config_of(level: float) -> PipelineConfig:
        return stages.resolve([f"output_dir={tmp_path}", f"evaluation.confidence={level}"]).config

    stages.check_continuation(config_of(0.9), lambda stage: False)
    stages.check_continuation(config_of(0.8), lambda stage: stage == "collect")
    with pytest.raises(UserError, match="holds a pipeline with evaluation.confidence=0.8, not 0.9"):
        stages.check_continuation(config_of(0.9), lambda stage: stage == "eval-base")


AFFINE_YAML = """
data:
  affine:
    num_samples: 10000
    dataset: "satpalsr/rl-python"
    buffer_size: 5
    environments: ["affine:sat", "affine:abd", "affine:ded"]
  agentgym:
    num_episodes: 5000
    max_episode_length: 50
    environments: ["agentgym:textcraft"]
training: {use_lora: true, lora_r: 64, lora_alpha: 128, lora_dropout: 0.05, num_epochs: 3, batch_size: 2,
  gradient_accumulation_steps: 8, learning_rate: 2.0e-5, warmup_steps: 100, weight_decay: 0.01, max_grad_norm: 1.0,
  scheduler_type: "cosine", min_lr_ratio: 0.1, bf16: true, fp16: false, gradient_checkpointing: true,
  save_steps: 1000, save_total_limit: 3}
rl_training: {algorithm: "ppo", ppo_epochs: 4, num_rollouts: 100, rollout_batch_size: 4, clip_range: 0.2, vf_coef: 0.25,
  entropy_coef: 0.01, gae_lambda: 0.95, gamma: 0.99, learning_rate: 1.0e-5, max_grad_norm: 1.0}
tracking: {use_wandb: true, wandb_project: "affine-training"}
"""


def test_affines_own_yaml_loads_as_its_authors_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A data set that is not here is a warning of the dry run, and an error of the run that says where to put it."""
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    recipe = tmp_path / "config.yaml"
    recipe.write_text(AFFINE_YAML)
    assert main(["pipeline", f"recipe={recipe}", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "buffer_size: 5" in shown.out
    assert "data.affine.dataset: there is no" in shown.err
    assert stages.rl_config(stages.resolve([f"recipe={recipe}"]).config).critic.vf_coef == 0.25
    assert main(["pipeline", f"recipe={recipe}", f"output_dir={tmp_path / 'out'}"]) == 2
    error = capsys.readouterr().err
    location = tmp_path / "cache" / "datasets" / "satpalsr--rl-python.jsonl"
    assert "pip install 'practicum[datasets]'" in error
    assert f"put its rows into a file of JSON lines at '{location}'" in error


def test_the_rows_of_a_hub_id_are_read_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets  # type: ignore[import-untyped]

    from practicum.data.hub_dataset import fetch_dataset, local_path

    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path / "cache"))
    rows = [{"program": f"print({n})", "inputs": "", "output": f"{n}\n"} for n in range(7)]
    hub = {"train": datasets.Dataset.from_list(rows).to_iterable_dataset()}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, streaming: hub)
    fetch_dataset("some/rows", buffer_size=3)
    assert [json.loads(line) for line in local_path("some/rows").read_text().splitlines()] == rows
    assert local_path("../rows.jsonl") == Path("../rows.jsonl")


def test_the_coefficient_of_the_value_loss_acts_through_gradient_clipping() -> None:
    from practicum.models import loader
    from practicum.models.decoder import Decoder
    from practicum.training.critic import Critic, CriticSettings, ValuedSample
    from practicum.training.text_dataset import reply_sample

    def update(vf_coef: float) -> dict[str, float]:
        settings = CriticSettings(lr=1e-3, vf_coef=vf_coef, grad_clip=1e-3)
        critic = Critic(Decoder(loader.load("tiny").model), settings)
        sample = reply_sample([5, 6, 7], [8, 9])
        return critic.update([ValuedSample(sample, torch.zeros(2), torch.ones(2))], 1e-3)

    small, large = update(0.5), update(1.0)
    assert large["critic/vf_loss"] == pytest.approx(2 * small["critic/vf_loss"])
    assert large["critic/grad_norm"] == pytest.approx(2 * small["critic/grad_norm"])
