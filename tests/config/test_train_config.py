from __future__ import annotations

import json
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.config.overrides import recipe_names
from practicum.config.resolve import resolve_train
from practicum.config.train import TrainConfig
from practicum.errors import UserError
from practicum.pipeline import stages
from practicum.training import settings

QWEN = "Qwen/Qwen2.5-3B-Instruct"
MATH_COMMAND = [
    "algorithm.adv_estimator=grpo",
    "data.train_files=./data/rlhf/math/gsm8k_train.json",
    "data.val_files=./data/rlhf/math/gsm8k_test.json",
    "data.train_batch_size=64",
    "agent.agent_type=hf",
    "agent.tools=[calculator]",
    "agent.template=qwen2.5",
    f"agent.model_name_or_path={QWEN}",
    "agent.max_turns=3",
    "agent.reward_name=math_reward_string_equal",
    "agent.num_chains=8",
    "agent.use_agent=True",
    "actor_rollout_ref.actor.optim.lr=5e-7",
    f"actor_rollout_ref.model.path={QWEN}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.kl_loss_coef=0.001",
    "actor_rollout_ref.actor.kl_loss_type=mse",
    "actor_rollout_ref.actor.entropy_coeff=0.001",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.response_length=256",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
    f"critic.model.path={QWEN}",
    "algorithm.kl_ctrl.kl_coef=0.001",
    "trainer.logger=[console,wandb]",
    "trainer.project_name=AgentRL",
    "trainer.experiment_name=test_gsm8k",
    "trainer.n_gpus_per_node=1",
    "trainer.nnodes=1",
    "trainer.save_freq=50",
    "trainer.test_freq=10",
    "trainer.total_training_steps=100",
]
SEARCH_COMMAND = [
    "algorithm.adv_estimator=reinforce_plus_plus",
    "data.train_files=./data/rlhf/qa/train_random_8000.json",
    "data.val_files=./data/rlhf/qa/dev_random_500.json",
    "data.train_batch_size=128",
    "data.val_batch_size=512",
    "agent.agent_type=react",
    "agent.tools=[google_search,answer]",
    f"agent.model_name_or_path={QWEN}",
    "agent.max_turns=4",
    "agent.reward_name=qa_f1_reward",
    "agent.num_chains=1",
    "agent.use_agent=True",
    "actor_rollout_ref.actor.optim.lr=5e-7",
    f"actor_rollout_ref.model.path={QWEN}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=128",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.kl_loss_coef=0.001",
    "actor_rollout_ref.actor.kl_loss_type=mse",
    "actor_rollout_ref.actor.entropy_coeff=0.001",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.response_length=512",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
    f"critic.model.path={QWEN}",
    "critic.ppo_mini_batch_size=32",
    "algorithm.kl_ctrl.kl_coef=0.001",
    "trainer.logger=['console','wandb']",
    "trainer.project_name=AgentRL",
    "trainer.experiment_name=react_search_agent",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.save_freq=50",
    "trainer.test_freq=10",
    "trainer.total_training_steps=200",
    "trainer.val_before_train=True",
]
CODE_COMMAND = [
    "algorithm.adv_estimator=grpo", "data.train_files=./data/rlhf/code/train.json",
    "data.val_files=./data/rlhf/code/val.json", "data.train_batch_size=64", "agent.agent_type=code",
    "agent.tools=[python_executor]", f"agent.model_name_or_path={QWEN}", "agent.max_turns=5",
    "agent.reward_name=code_reward", "agent.num_chains=4", "agent.use_agent=True",
    "actor_rollout_ref.actor.optim.lr=4e-7", f"actor_rollout_ref.model.path={QWEN}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_coef=0.001",
    "actor_rollout_ref.actor.kl_loss_type=mse", "actor_rollout_ref.actor.entropy_coeff=0.001",
    "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.response_length=512",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1", "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
    f"critic.model.path={QWEN}", "algorithm.kl_ctrl.kl_coef=0.001", "trainer.logger=[console,wandb]",
    "trainer.project_name=AgentRL", "trainer.experiment_name=code_agent", "trainer.n_gpus_per_node=4",
    "trainer.nnodes=1", "trainer.save_freq=50", "trainer.test_freq=10", "trainer.total_training_steps=300",
]  # fmt: skip


def test_both_spellings_of_the_agent_group() -> None:
    first = resolve_train(["agent.tools=[calculator]", "agent.max_turns=3"]).config
    second = resolve_train(["agent.init_args.tools=[calculator]", "agent.max_turns=3"]).config
    assert first == second
    assert first.agent.tools == ["calculator"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.total_steps=3", "Unknown key 'trainer.total_steps'. Did you mean 'trainer.total_training_steps'"),
        ("agent.max_turn=3", "Unknown key 'agent.max_turn'. Did you mean 'agent.max_turns'"),
        ("trainer.total_step=3", "Unknown key 'trainer.total_step'"),
        ("agent.max_turns.deep=3", "Unknown key"),
        ("nothing=1", "Unknown key 'nothing'"),
        ("agent.max_turns=lots", "agent.max_turns=lots"),
        ("agent.max_turns", "KEY=VALUE"),
        ("agent.tools=[a=b]", "quotes around what holds '=' itself: \"KEY='A=B'\", \"KEY=['A=B']\" for a list."),
        ("+agent.extra=1", "none can be added"),
        ("~agent.tools", "none can be added or removed"),
        ("recipe=nothing", "There is no recipe 'nothing'"),
    ],
)
def test_wrong_keys_and_values_are_errors(override: str, message: str) -> None:
    with pytest.raises(UserError) as exc_info:
        resolve_train([override])
    assert message in str(exc_info.value)
    assert "\n" not in str(exc_info.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("actor_rollout_ref.actor.grad_clip=-1", "actor_rollout_ref.actor.grad_clip=-1.0: it must be at least 0"),
        ("critic.grad_clip=-1", "at least 0"),
        ("actor_rollout_ref.actor.clip_ratio_low=-1", "at least 0"),
        ("actor_rollout_ref.actor.clip_ratio_high=nan", "clip_ratio_high=nan is not a finite number"),
        ("actor_rollout_ref.actor.optim.lr_warmup_steps=-5", "lr_warmup_steps=-5: it must be at least 0"),
        ("actor_rollout_ref.actor.optim.lr=-1", "at least 0"),
        ("actor_rollout_ref.actor.optim.lr=nan", "not a finite number"),
        ("actor_rollout_ref.rollout.temperature=nan", "not a finite number"),
        ("health.kl_warn=inf", "not a finite number"),
        ("agent.max_tokens_per_turn=0", "agent.max_tokens_per_turn=0: it must be at least 1"),
        ("data.val_batch_size=0", "at least 1"),
        ("actor_rollout_ref.actor.clip_ratio_c=1", "clip_ratio_c=1.0: it must be above 1, or 0"),
        ("actor_rollout_ref.actor.clip_ratio_c=0.5", "must be above 1, or 0"),
        ("algorithm.gamma=1.5", "algorithm.gamma=1.5: it must be at least 0 and at most 1"),
        ("algorithm.lam=3", "at most 1"),
        ("algorithm.error_budget=4", "at most 1"),
        ("data.curriculum.threshold=7", "at most 1"),
        ("data.curriculum.window=0", "at least 1"),
        ("data.curriculum.window=-1", "at least 1"),
    ],
)
def test_numbers_without_a_meaning_are_errors(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_train([override])


def test_numbers_that_mean_none_or_never_are_kept() -> None:
    kept = ["actor.grad_clip=0", "actor.optim.lr=0", "actor.tis_imp_ratio_cap=-1", "rollout.val_temperature=0"]
    resolve_train([*(f"actor_rollout_ref.{key}" for key in kept), "trainer.save_freq=-1", "trainer.test_freq=-1",
             "agent.max_tokens_per_turn=null"])  # fmt: skip


def test_environment_options_pass_through() -> None:
    config = resolve_train(["agent.environment_args.levels=[1,2]"]).config
    assert config.agent.environment_args == {"levels": [1, 2]}


def test_a_recipe_is_checked_like_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("agent:\n  max_turns: 7\ndata:\n  train_batch_size: 4\n")
    (tmp_path / "bad.yaml").write_text("agent:\n  max_turnz: 7\n")
    config = resolve_train(["recipe=good", "agent.max_turns=9"], tmp_path).config
    assert (config.agent.max_turns, config.data.train_batch_size) == (9, 4)
    with pytest.raises(UserError, match="Did you mean 'agent.max_turns'"):
        resolve_train(["recipe=bad"], tmp_path)


def test_a_recipe_may_change_another_one(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("agent:\n  max_turns: 7\ndata:\n  train_batch_size: 4\n")
    (tmp_path / "long.yaml").write_text("recipe: good\nagent:\n  max_turns: 20\n")
    (tmp_path / "longer.yaml").write_text("recipe: long.yaml\nagent:\n  num_chains: 3\n")
    agent = resolve_train(["recipe=longer"], tmp_path).config.agent
    assert (agent.max_turns, agent.num_chains) == (20, 3)
    resolved = resolve_train([f"recipe={tmp_path}/longer.yaml"], tmp_path)
    assert resolved.config.data.train_batch_size == 4
    assert resolved.sources["data.train_batch_size"] == "recipe longer"
    (tmp_path / "good.yaml").write_text("recipe: longer\n")
    with pytest.raises(UserError, match="is made from itself"):
        resolve_train(["recipe=long"], tmp_path)


@pytest.mark.parametrize(
    ("name", "steps", "episodes", "tasks"),
    [
        ("htdag", 250, 8000, 100),
        ("htdag-1k", 32, 1024, 100),
        ("htdag-10k", 313, 10016, 1000),
        ("htdag-100k", 3125, 100000, 10000),
        ("htdag-tiny", 60, 7680, None),
    ],
)
def test_recipes_of_htdag(
    name: str, steps: int, episodes: int, tasks: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--dry-run", f"recipe={name}", "trainer.device=cpu"]) == 0
    shown = capsys.readouterr().out
    assert f"# steps: {steps}" in shown
    config = resolve_train([f"recipe={name}"]).config
    assert config.data.train_batch_size * config.agent.num_chains * settings.training_steps(config) == episodes
    assert config.data.num_train_tasks == tasks
    assert config.algorithm.adv_estimator == "flow_grpo"
    assert config.trainer.log_file == "logs/htdag_rl_training_%Y%m%d_%H%M%S.log"
    if name != "htdag-tiny":
        actor, trainer = config.actor_rollout_ref.actor, config.trainer
        assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.2)
        assert (actor.optim.lr, actor.entropy_coeff) == (3e-4, 0.01)
        assert (config.algorithm.gamma, config.algorithm.kl_ctrl.kl_coef) == (0.99, 0.001)
        assert config.data.train_batch_size * config.agent.num_chains == 32
        assert (trainer.save_freq, trainer.early_stopping_patience, trainer.best_metric) == (1000, 3, "val/reward/mean")


def test_every_shipped_recipe_resolves() -> None:
    for name in recipe_names():
        log = ["data.from_trajectories=data/trajectories"] if name == "halo-grpo" else []  # it learns from a log
        (stages.resolve if name.startswith("affine") else resolve_train)([f"recipe={name}", *log])


@pytest.mark.parametrize("command", [MATH_COMMAND, SEARCH_COMMAND, CODE_COMMAND], ids=["math", "search", "code"])
def test_the_papers_commands_resolve(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As they are written, for 1, 8 and 4 GPUs."""
    assert main(["train", "--dry-run", *command]) == 0
    shown = capsys.readouterr().out
    assert f"model: {QWEN}" in shown
    assert "updates per step: 1 " in shown
    config = resolve_train(command).config
    assert config.trainer.logger == ["console", "wandb"]
    assert config.trainer.project_name == "AgentRL"


def test_a_dry_run_says_what_the_policy_is_measured_from(capsys: pytest.CaptureFixture[str]) -> None:
    for value, message in (
        ([], "a frozen copy of the start"),
        (["actor_rollout_ref.model.lora_rank=8"], "the model beneath its new adapter"),
        (["actor_rollout_ref.model.lora_adapter_path=x"], "a frozen copy of the adapter at the start"),
        (["actor_rollout_ref.actor.use_kl_loss=false"], "none"),
    ):
        assert main(["train", "--dry-run", "trainer.total_training_steps=2", *value]) == 0
        assert f"reference model: {message}" in capsys.readouterr().out
    assert (
        main(
            [
                "train",
                "--dry-run",
                "trainer.total_training_steps=2",
                "trainer.early_stopping_patience=3",
                "trainer.test_freq=-1",
            ]
        )
        == 2
    )


def test_the_defaults_that_agentfly_documents() -> None:
    config = TrainConfig()
    actor, rollout, trainer, algorithm = (
        config.actor_rollout_ref.actor,
        config.actor_rollout_ref.rollout,
        config.trainer,
        config.algorithm,
    )
    assert (config.agent.use_agent, algorithm.adv_estimator, algorithm.gamma, algorithm.lam) == (True, "gae", 1.0, 1.0)
    assert (algorithm.use_kl_in_reward, algorithm.kl_ctrl.type, algorithm.kl_ctrl.kl_coef) == (False, "fixed", 0.001)
    assert (algorithm.kl_ctrl.target_kl, algorithm.kl_ctrl.horizon) == (0.1, 10_000)
    assert (trainer.nnodes, trainer.n_gpus_per_node, trainer.save_freq, trainer.test_freq) == (1, 8, -1, -1)
    assert (trainer.val_before_train, trainer.critic_warmup, trainer.resume_mode) == (True, 0, "auto")
    assert (actor.optim.lr, actor.use_kl_loss, actor.entropy_coeff) == (5e-7, True, 0.001)
    assert (rollout.gpu_memory_utilization, trainer.logger) == (0.5, ["console"])
    assert config.actor_rollout_ref.model.enable_gradient_checkpointing is False


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor_rollout_ref.rollout.tensor_model_parallel_size=2"], "means nothing to actor_rollout_ref.rollout.name"),
        (["actor_rollout_ref.rollout.gpu_memory_utilization=0.9", "trainer.device=cpu"], "means nothing to"),
        (["trainer.nnodes=2"], "needs trainer.n_gpus_per_node too"),
        (["trainer.overlap=true", "trainer.n_gpus_per_node=8"], "does not go with 8 ranks yet"),
        (
            [
                "actor_rollout_ref.rollout.name=vllm",
                "trainer.n_gpus_per_node=8",
                "actor_rollout_ref.rollout.tensor_model_parallel_size=3",
            ],
            "does not divide the 8 ranks",
        ),
        (["algorithm.adv_estimator=grpo", "algorithm.gamma=0.9"], "does nothing with algorithm.adv_estimator=grpo"),
        (["algorithm.adv_estimator=grpo", "algorithm.lam=0.9"], "only gae and turn_gae read it"),
        (["algorithm.adv_estimator=rloo", "algorithm.gamma=0.9"], "does nothing with algorithm.adv_estimator=rloo"),
        (["algorithm.adv_estimator=rloo", "algorithm.gamma=0.9"], "adv_estimator=rloo"),
        (["algorithm.row_weighted=true"], "only flow_grpo reads it"),
        (["algorithm.adv_estimator=rloo", "algorithm.norm_adv_by_std_in_grpo=false"], "only grpo and flow_grpo read"),
        (["algorithm.adv_estimator=grpo", "algorithm.turn_rewards=true"], "adv_estimator=grpo"),
        (["algorithm.kl_penalty=abs"], "does nothing without algorithm.use_kl_in_reward"),
        (["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.target_kl=0.2"], "algorithm.kl_ctrl.type=adaptive"),
        (["actor_rollout_ref.actor.use_kl_loss=false", "actor_rollout_ref.actor.kl_loss_type=kl"],
         "without actor_rollout_ref.actor.use_kl_loss"),
        (["data.curriculum.window=3"], "without data.curriculum.enable"),
        (["actor_rollout_ref.rollout.name=vlm"], "Unknown actor_rollout_ref.rollout.name 'vlm'"),
        (["actor_rollout_ref.actor.fsdp_config.param_offload=true"], "only a learner that is sharded"),
        (["actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.actor.fsdp_config.param_offload=true"],
         "only a learner that is sharded"),
        (["actor_rollout_ref.actor.strategy=fsdp"], "Did you mean 'fsdp2'"),
        (["actor_rollout_ref.ref.fsdp_config.param_offload=true"], "only a learner that is sharded"),
        (["agent.backend=async_vllm", "actor_rollout_ref.rollout.name=local"], "is the engine vllm, not"),
        (["agent.backend=client"], "give its address, actor_rollout_ref.rollout.vllm.url"),
        (["agent.backend=async_vlm"], "Did you mean 'async_vllm'"),
        (["actor_rollout_ref.rollout.name=vllm", "trainer.nnodes=2"], "needs trainer.n_gpus_per_node too"),
        (["actor_rollout_ref.actor.ppo_mini_batch_size=32"], "data.train_batch_size=16"),
        (["actor_rollout_ref.actor.ppo_mini_batch_size=5"], "does not divide data.train_batch_size=16"),
        (["critic.ppo_mini_batch_size=0"], "at least 1"),
        (["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=0"], "at least 1"),
        (["agent.num_chains=0"], "agent.num_chains"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_an_error(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as exc_info:
        resolve_train(overrides)
    assert message in str(exc_info.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor_rollout_ref.model.path=smollm2"], "Set trainer.total_training_steps"),
        (["trainer.total_epochs=2"], "counts passes over data.train_files"),
        (["trainer.total_training_steps=2", "algorithm.adv_estimator=grp"], "Did you mean 'grpo'"),
        (["trainer.total_training_steps=2", "algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=fll"],
         "Did you mean 'full'"),
        (["trainer.total_training_steps=2", "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptiv"],
         "Did you mean 'adaptive'"),
        (["trainer.total_training_steps=2", "actor_rollout_ref.actor.policy_loss.loss_mode=gsp"], "mean 'gspo'"),
        (["trainer.total_training_steps=2", "actor_rollout_ref.rollout.name=vllm", "agent.num_chains=1"], "vllm"),
        (["trainer.total_training_steps=2", "agent.model_name_or_path=tiny", "actor_rollout_ref.model.path=smollm2"],
         "name two models"),
        (["trainer.total_training_steps=2", "agent.environment=tools"], "needs a reward"),
        (["trainer.total_training_steps=2", "trainer.logger=[tensorbord]"], "Did you mean 'tensorboard'"),
        (["trainer.total_training_steps=2", "health.action=panic"], "panic"),
        (["trainer.total_training_steps=2", "health.reward_flat_after=70"], "at most health.reward_flat_window"),
        (["trainer.total_training_steps=2", "sandbox.level=namespace"], "Did you mean 'namespaces'"),
        (["trainer.total_training_steps=2", "trainer.critic_warmup=5", "algorithm.adv_estimator=grpo"], "has none"),
        (["trainer.total_training_steps=2", "trainer.early_stopping_patience=3", "trainer.test_freq=-1"],
         "set trainer.test_freq above 0"),
        (["trainer.total_training_steps=2", "trainer.best_metric=val/score"], "validation gives val/success/mean"),
        (["trainer.total_training_steps=2", "algorithm.kl_ctrl.kl_coef=0.5"], "without algorithm.use_kl_in_reward"),
        (["trainer.total_training_steps=2", "actor_rollout_ref.model.lora_alpha=64"], "model.lora_rank; set that too"),
        (["trainer.total_training_steps=2", "actor_rollout_ref.model.lora_rank=8",
          "actor_rollout_ref.model.lora_adapter_path=x"], "an adapter with a rank of its own"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_start_says_why(
    overrides: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["train", *overrides, f"trainer.default_local_dir={tmp_path}", "trainer.val_before_train=false"])
    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_the_mismatch_that_stops_a_run_follows_the_precision() -> None:
    def limit(*given: str) -> float:
        return settings.rl_settings(resolve_train(["trainer.device=cpu", *given]).config, 1).mismatch_limit

    assert limit() == 0.01
    assert limit("actor_rollout_ref.model.dtype=bfloat16") == 0.1
    assert limit("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.vllm.dtype=bfloat16") == 0.1
    assert limit("actor_rollout_ref.model.dtype=bfloat16", "algorithm.mismatch_limit=0.02") == 0.02


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("agent.tools=[calculater]", "Unknown tool 'calculater'. Did you mean 'calculator'"),
        ("agent.reward_name=maths_reward", "Unknown reward 'maths_reward'"),
        ("agent.environment=maths", "Unknown environment 'maths'"),
        ("agent.template=chatlm", "Unknown chat template 'chatlm'"),
        ("trainer.logger=[consol]", "Unknown trainer.logger 'consol'"),
        ("actor_rollout_ref.rollout.name=lokal", "Unknown actor_rollout_ref.rollout.name 'lokal'"),
        ("trainer.resume_mode=never", "trainer.resume_mode=never: choose one of auto, disable"),
        ("agent.agent_type=reakt", "has the formats"),
        ("agent.thoughts=hide", "Unknown agent.thoughts 'hide'"),
        ("trainer.nnodes=2", "needs trainer.n_gpus_per_node too"),
        ("actor_rollout_ref.model.path=tinny", "Unknown model 'tinny'"),
        ("algorithm.offline.method=bandid", "is for learning from a log"),
    ],
)
def test_a_dry_run_fails_on_what_the_run_refuses(
    override: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--dry-run", "trainer.total_training_steps=2", override]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.train_files=nowhere.json", "data.val_files=nowhere.json", "agent.reward_name=math_reward"],
         "data.train_files: there is no 'nowhere.json' on this machine"),
        (["actor_rollout_ref.model.path=some/model"],
         "actor_rollout_ref.model.path: model 'some/model' is not on this machine"),
        (["actor_rollout_ref.model.lora_adapter_path=some/adapter"],
         "actor_rollout_ref.model.lora_adapter_path: adapter 'some/adapter' is not on this machine"),
    ],
)  # fmt: skip
def test_a_dry_run_warns_of_what_is_not_on_this_machine_and_the_run_refuses_it(
    overrides: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ["trainer.total_training_steps=2", f"trainer.default_local_dir={tmp_path}"]
    assert main(["train", "--dry-run", *steps, *overrides]) == 0
    assert f"practicum: warning: {message}" in capsys.readouterr().err
    assert main(["train", *steps, *overrides]) == 2
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_a_dry_run_reads_the_task_files_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tasks.json").write_text('[{"quest": "1 + 1"}]')
    command = ["train", "--dry-run", "trainer.total_epochs=1", f"data.train_files={tmp_path}/tasks.json",
               "agent.reward_name=math_reward", "trainer.val_before_train=false"]  # fmt: skip
    assert main(command) == 2
    assert "lacks 'question'" in capsys.readouterr().err


def test_a_dry_run_warns_of_validation_tasks_that_are_training_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the run itself said so, after the model was loaded."""
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(6)]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    (tmp_path / "val.json").write_text(json.dumps([{**rows[0], "id": "v0"}, {"question": "1 + 2?", "answer": "3"}]))
    command = ["train", "--dry-run", "agent.environment=math", "trainer.total_epochs=1", "data.val_batch_size=2",
               f"data.train_files={tmp_path}/train.json", "data.train_batch_size=2"]  # fmt: skip
    assert main([*command, f"data.val_files={tmp_path}/val.json"]) == 0
    assert "warning: 1 of 2 validation tasks are training tasks too" in capsys.readouterr().err
    assert main([*command, f"data.val_files={tmp_path}/missing.json"]) == 0
    assert "training tasks too" not in capsys.readouterr().err


def test_a_typed_configuration_of_a_log_has_the_estimator_of_logs() -> None:
    config = TrainConfig()
    config.data.from_trajectories = "runs/collect"
    assert resolve_train(config).config.algorithm.adv_estimator == "grpo"
    chosen = resolve_train(["data.from_trajectories=runs/collect", "algorithm.adv_estimator=gae"])
    assert resolve_train(chosen).config.algorithm.adv_estimator == "gae"
