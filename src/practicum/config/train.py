"""Configuration: typed groups with the names verl and AgentFly users know, and no key that does nothing.

Every key below is honoured. An override that names no key is an error that names the nearest one.
Both spellings of the agent group work: `agent.tools=[...]` and `agent.init_args.tools=[...]`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from practicum.config.overrides import RECIPES, read_overrides, schema_keys
from practicum.errors import UserError
from practicum.training.monitor.health import HealthSettings
from practicum.training.monitor.reward_hacking import RewardHackingSettings


@dataclass
class AgentConfig:
    use_agent: bool = True  # False: one turn, no tools
    environment: str | None = None  # default: what the data and the tools are for (`--dry-run` says)
    environment_args: dict[str, Any] = field(default_factory=dict)
    model_name_or_path: str | None = None
    template: str | None = None
    agent_type: str = "hf"
    tools: list[str] | None = None
    reward_name: str | None = None
    verifier_name: str | None = None  # a second reward: scored, never trained on
    backend: str = "async_verl"
    thoughts: str = "keep"  # or strip: <think>…</think> of earlier turns is not shown again
    stream: bool = False  # show one chain as it happens; needs num_chains=1
    max_turns: int = 4
    num_chains: int = 8
    max_tokens_per_turn: int | None = None  # default: rollout.response_length


@dataclass
class KLControlConfig:
    type: str = "fixed"
    kl_coef: float = 0.001
    target_kl: float = 0.1
    horizon: int = 10_000


@dataclass
class FilterGroupsConfig:
    enable: bool = False
    max_num_gen_batches: int = 1


@dataclass
class OfflineConfig:
    """How a log is learnt from, where `data.from_trajectories` names one."""

    method: str = "grpo"  # logged episodes of a task compared; or bandit: logged actions paid, as in founding paper 002
    top_percent: float = 0.2  # bandit: share of a task's episodes, the furthest first, whose actions are paid


@dataclass
class AlgorithmConfig:
    adv_estimator: str = "gae"  # grpo, where a log is learnt from and none is named
    gamma: float = 1.0
    lam: float = 1.0
    norm_adv_by_std_in_grpo: bool = True
    turn_rewards: bool = False
    row_weighted: bool = False
    bootstrap_truncated: bool | None = None  # default: where gamma is below 1
    use_kl_in_reward: bool = False
    kl_penalty: str = "kl"
    kl_ctrl: KLControlConfig = field(default_factory=KLControlConfig)
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    error_budget: float = 0.5
    mismatch_limit: float | None = None  # default: 0.01, and 0.1 in bfloat16


@dataclass
class TrainerConfig:
    project_name: str = "practicum"
    experiment_name: str = "run"
    default_local_dir: str = "runs"
    logger: list[str] = field(default_factory=lambda: ["console"])
    total_training_steps: int | None = None
    total_epochs: int | None = None
    nnodes: int = 1
    n_gpus_per_node: int = 8
    device: str = "auto"  # a CUDA GPU where there is one; or cpu, cuda, cuda:N
    save_freq: int = -1
    save_total_limit: int | None = None
    test_freq: int = -1
    val_before_train: bool = True
    best_metric: str = "val/success/mean"
    early_stopping_patience: int = 0
    critic_warmup: int = 0
    overlap: bool = False  # roll out the next batch while this one trains; it is then one step off-policy
    resume_mode: str = "auto"
    resume_from_path: str | None = None
    seed: int = 0


@dataclass
class CurriculumConfig:
    enable: bool = False
    field: str = "level"
    threshold: float = 0.7
    window: int = 64


@dataclass
class DataConfig:
    train_files: str | None = None
    val_files: str | None = None
    from_trajectories: str | None = None  # folder of episodes to learn from instead of playing; --from-trajectories
    train_batch_size: int = 16
    val_batch_size: int = 300
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)


@dataclass
class OptimConfig:
    lr: float = 5e-7
    lr_warmup_steps: int = 0
    warmup_style: str = "constant"
    min_lr_ratio: float = 0.1
    weight_decay: float = 0.0


@dataclass
class FSDPConfig:
    param_offload: bool = False
    optimizer_offload: bool = False


@dataclass
class PolicyLossConfig:
    loss_mode: str = "vanilla"


@dataclass
class ActorConfig:
    optim: OptimConfig = field(default_factory=OptimConfig)
    ppo_mini_batch_size: int | None = None
    ppo_micro_batch_size_per_gpu: int | None = None
    ppo_max_token_len_per_gpu: int = 16384  # on a CPU, 480 at most
    ppo_epochs: int = 1
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float = 3.0
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)
    use_kl_loss: bool = True
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "mse"
    entropy_coeff: float = 0.001
    loss_agg_mode: str | None = None  # default: the estimator's own
    tis_imp_ratio_cap: float = 0.0
    grad_clip: float = 1.0
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)


@dataclass
class ModelConfig:
    path: str | None = None
    dtype: str = "auto"  # of the weights: bfloat16 on a GPU (with float32 masters), float32 on a CPU
    enable_gradient_checkpointing: bool = False
    lora_rank: int = 0  # 0: train all weights
    lora_alpha: float = 32.0
    lora_dropout: float = 0.0
    target_modules: list[str] | None = None  # default: all linear layers
    lora_adapter_path: str | None = None  # go on from this adapter


@dataclass
class VLLMConfig:
    url: str | None = None  # a server that runs; without one, a server is started
    python: str | None = None  # interpreter of an environment that has vLLM; default: this one
    port: int = 0  # of a started server; 0: a free one
    dtype: str = "float32"  # the learner's; bfloat16 is faster, and wants actor.tis_imp_ratio_cap
    max_model_len: int | None = None  # default: the model's own window
    extra_args: list[str] = field(default_factory=list)  # handed to the server as they are
    start_timeout: float = 600.0
    canary_limit: float = 0.1  # mean |engine - learner| log-prob at which an update is refused


@dataclass
class RolloutConfig:
    name: str = "local"
    temperature: float = 1.0
    val_temperature: float = 0.0
    response_length: int = 256
    max_num_seqs: int | None = None  # replies decoded at once; default: 256 on a GPU, else 64
    tensor_model_parallel_size: int = 1
    gpu_memory_utilization: float = 0.5
    log_prob_micro_batch_size_per_gpu: int | None = None
    vllm: VLLMConfig = field(default_factory=VLLMConfig)


@dataclass
class RefFSDPConfig:
    param_offload: bool = False


@dataclass
class RefConfig:
    fsdp_config: RefFSDPConfig = field(default_factory=RefFSDPConfig)


@dataclass
class ActorRolloutRefConfig:
    actor: ActorConfig = field(default_factory=ActorConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    ref: RefConfig = field(default_factory=RefConfig)


@dataclass
class CriticModelConfig:
    path: str | None = None  # default: a head on the policy's hidden states


@dataclass
class CriticOptimConfig:
    lr: float = 1e-5
    weight_decay: float = 0.0


@dataclass
class CriticConfig:
    model: CriticModelConfig = field(default_factory=CriticModelConfig)
    optim: CriticOptimConfig = field(default_factory=CriticOptimConfig)
    ppo_mini_batch_size: int | None = None
    ppo_micro_batch_size_per_gpu: int | None = None
    ppo_epochs: int = 1
    cliprange_value: float = 0.5
    grad_clip: float = 1.0


@dataclass
class SandboxConfig:
    level: str = "namespaces"  # the weakest isolation that model-written code may run in
    concurrency: int | None = None


@dataclass
class TrainConfig:
    """Everything `practicum train` reads."""

    agent: AgentConfig = field(default_factory=AgentConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    health: HealthSettings = field(default_factory=HealthSettings)
    hacking: RewardHackingSettings = field(default_factory=RewardHackingSettings)


CLUSTER_ONLY = (
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "actor_rollout_ref.ref.fsdp_config.param_offload",
)
SERVER_ONLY = (
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
)
"""Keys of an engine that is a server; the local one cannot honour them, so setting them is an error there."""
VLLM = "actor_rollout_ref.rollout.vllm."
STARTED_ONLY = (
    *SERVER_ONLY,
    *(VLLM + key for key in ("python", "port", "dtype", "max_model_len", "extra_args", "start_timeout")),
)
"""Keys of a server that we start; one that is found running has settled them already."""
OFFLINE_ONLY = ("algorithm.offline.method", "algorithm.offline.top_percent")
NOT_OFFLINE = {
    "algorithm.filter_groups.enable": "groups without a difference are left out of a log anyway",
    "data.curriculum.enable": "it follows the successes of the policy, which a log does not hold",
    "agent.stream": "no episode is played that could be shown",
    "trainer.overlap": "there is no rollout that could go beside the updates",
}
NOT_FROM_GROUPS = {
    "algorithm.use_kl_in_reward": "logged rewards are compared as they are; use actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.tis_imp_ratio_cap": "ratios are taken against the log's own log-probs",
}
"""Keys that mean nothing to a run over a log, and why."""
NOT_BELOW_0 = (
    "lr", "learning_rate", "value_learning_rate", "lr_warmup_steps", "warmup_steps", "warmup_ratio", "min_lr_ratio",
    "weight_decay", "grad_clip", "max_grad_norm", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "clip_range",
    "cliprange_value", "kl_coef", "kl_loss_coef", "gamma", "lam", "gae_lambda", "temperature", "val_temperature",
    "lora_rank", "early_stopping_patience", "critic_warmup", "error_budget", "mismatch_limit",
)  # fmt: skip
ABOVE_0 = (
    "max_turns", "max_tokens_per_turn", "response_length", "max_response_tokens", "max_episode_length",
    "val_batch_size", "batch_size", "gradient_accumulation_steps", "num_epochs", "total_epochs",
    "ppo_max_token_len_per_gpu", "num_eval_samples",
)  # fmt: skip
"""Last names of keys whose numbers have a lower end; one whose -1 means something (never, off) is in neither."""


def resolve(overrides: list[str], recipes: Path = RECIPES) -> TrainConfig:
    """Defaults, then the recipe (`recipe=NAME`), then the overrides, checked key by key."""
    config, given = read_overrides(TrainConfig, overrides, recipes)
    check_numbers(config)
    check_backend(config, given)
    check_batches(config)
    check_offline(config, given)
    return config


def check_numbers(config: Any) -> None:
    """Every number of a schema is finite, and not below the lower end of its key."""
    tree = OmegaConf.structured(config)
    for key in schema_keys(type(config)):
        value, name = OmegaConf.select(tree, key), key.rpartition(".")[2]
        if not isinstance(value, int | float):
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{key}={value} is not a finite number; choose one.")
        if name in NOT_BELOW_0 and value < 0:
            raise UserError(f"{key}={value} is below 0; choose 0 or more.")
        if name in ABOVE_0 and value <= 0:
            raise UserError(f"{key}={value}: it must be at least 1.")


def check_offline(config: TrainConfig, given: set[str]) -> None:
    """What a run over a log can honour; its estimator is grpo where nobody named another."""
    if config.data.from_trajectories is None:
        for key in OFFLINE_ONLY:
            if key in given:
                raise UserError(f"{key} is for learning from a log; name one with --from-trajectories.")
        return
    if "algorithm.adv_estimator" not in given:
        config.algorithm.adv_estimator = "grpo"
    method, tree = config.algorithm.offline.method, OmegaConf.structured(config)
    for key, why in (NOT_OFFLINE | (NOT_FROM_GROUPS if method == "grpo" else {})).items():
        if OmegaConf.select(tree, key):
            raise UserError(f"{key} does not go with --from-trajectories: {why}.")


def check_backend(config: TrainConfig, given: set[str]) -> None:
    """What the chosen backend cannot honour is an error where somebody asked for it."""
    engine, trainer = config.actor_rollout_ref.rollout.name, config.trainer
    if engine == "local":
        for key in sorted(given):
            if key in SERVER_ONLY or key.startswith(VLLM):
                raise UserError(f"{key} means nothing to actor_rollout_ref.rollout.name=local; leave it out.")
        if "trainer.n_gpus_per_node" in given and trainer.n_gpus_per_node > 1:
            raise UserError(
                f"trainer.n_gpus_per_node={trainer.n_gpus_per_node}: actor_rollout_ref.rollout.name=local works on one "
                "device; set it to 1 (or 0)."
            )
        if trainer.nnodes > 1:
            raise UserError(f"trainer.nnodes={trainer.nnodes}: actor_rollout_ref.rollout.name=local is one process.")
    if engine == "vllm" and config.actor_rollout_ref.rollout.vllm.url:
        for key in STARTED_ONLY:
            if key in given:
                raise UserError(f"{key} is for a server that is started here; leave it out, or leave out {VLLM}url.")
    tree = OmegaConf.structured(config)
    for key in CLUSTER_ONLY:
        if OmegaConf.select(tree, key):
            raise UserError(f"{key}=true: only a sharded (FSDP) learner can offload; this one is not, set it to false.")
    if config.agent.backend not in ("async_verl", engine, f"async_{engine}"):
        raise UserError(
            f"agent.backend={config.agent.backend} is not actor_rollout_ref.rollout.name={engine}; "
            "leave it out, or make the two agree."
        )


def check_batches(config: TrainConfig) -> None:
    """The batch-size knobs against each other, each with what it counts."""
    tasks, actor, rollout = (
        config.data.train_batch_size,
        config.actor_rollout_ref.actor,
        config.actor_rollout_ref.rollout,
    )
    for name, mini in (
        ("actor_rollout_ref.actor.ppo_mini_batch_size", actor.ppo_mini_batch_size),
        ("critic.ppo_mini_batch_size", config.critic.ppo_mini_batch_size),
    ):
        if mini is None:
            continue
        if mini < 1 or mini > tasks:
            raise UserError(
                f"{name}={mini} counts tasks of one step, of which there are data.train_batch_size={tasks}; "
                "choose a number from 1 to that."
            )
        if tasks % mini:
            raise UserError(
                f"{name}={mini} does not divide data.train_batch_size={tasks}: the last update of a step would be over "
                f"{tasks % mini} tasks and weigh as much as the others; choose a divisor."
            )
    for name, micro in (
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", actor.ppo_micro_batch_size_per_gpu),
        ("critic.ppo_micro_batch_size_per_gpu", config.critic.ppo_micro_batch_size_per_gpu),
        ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu", rollout.log_prob_micro_batch_size_per_gpu),
    ):
        if micro is not None and micro < 1:
            raise UserError(f"{name}={micro} counts the sequences computed at once; it must be at least 1.")
    if tasks < 1 or config.agent.num_chains < 1:
        raise UserError("data.train_batch_size (tasks a step) and agent.num_chains (chains a task) must be at least 1.")


def known_keys() -> list[str]:
    return schema_keys(TrainConfig)
