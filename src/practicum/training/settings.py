"""Settings of a training run (`RLSettings`, `RunSettings`), and how they follow from a resolved TrainConfig.

Defaults and bounds are those of the configuration's schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from practicum.agent import EXTERNAL, ExternalAgent
from practicum.algorithms import kl, losses
from practicum.config.actor_rollout_ref import ActorConfig, OptimConfig
from practicum.config.fields import at_least, check_fields, default_of
from practicum.config.train import (
    AgentConfig,
    AlgorithmConfig,
    CurriculumConfig,
    DataConfig,
    FilterGroupsConfig,
    GroupRewardConfig,
    KLControlConfig,
    TrainConfig,
    TrainerConfig,
)
from practicum.data.run_folder import ModelRef, resolve_model
from practicum.engines.base import Sampling
from practicum.errors import UserError, did_you_mean
from practicum.models import loader
from practicum.models.loader import Device
from practicum.task import content_hash
from practicum.training.checkpoint import continued_values
from practicum.training.critic import CriticSettings
from practicum.training.estimators import ESTIMATORS, EstimatorSettings, OverlongBuffer
from practicum.training.learner import OptimizerSettings, learning_rate
from practicum.training.micro_batches import MicroBatchLimits
from practicum.training.objective import Objective, check_kl_kind

RESUME_MODES = ("auto", "disable", "resume_path")


PANEL_METRICS = (
    *("val/success/mean", "val/success/low", "val/success/high", "val/n", "val/errors"),
    *("val/reward/mean", "val/reward/std", "val/reward/min", "val/reward/max"),
)
"""What a validation by episodes gives; the largest value is the best."""


LOSS_METRICS = ("eval/loss",)
"""What a validation by loss gives; the smallest value is the best."""


@dataclass(frozen=True)
class RunSettings:
    """When to validate, save and stop.

    Frequencies count steps; -1 means never. An `early_stopping_patience` of 0 means no early stopping; None is the
    same, for runs whose checkpoints do not count validations. With `keep_best` the last weights are written to `last/`
    at the end; then those of the best validation, if there was one, are loaded and written to `model/`.
    """

    total_training_steps: int
    save_freq: int = default_of(TrainerConfig, "save_freq")
    save_total_limit: int | None = default_of(TrainerConfig, "save_total_limit")
    test_freq: int = default_of(TrainerConfig, "test_freq")
    val_before_train: bool = default_of(TrainerConfig, "val_before_train")
    required_figures: Mapping[str, float] = field(default_factory=dict)
    best_metric: str = default_of(TrainerConfig, "best_metric")
    early_stopping_patience: int | None = default_of(TrainerConfig, "early_stopping_patience")
    resume_mode: str = default_of(TrainerConfig, "resume_mode")
    resume_from_path: str | None = default_of(TrainerConfig, "resume_from_path")
    keep_best: bool = False
    save_on_stop: bool = True

    def __post_init__(self) -> None:
        if self.best_metric not in PANEL_METRICS + LOSS_METRICS:
            raise UserError(f"trainer.best_metric={self.best_metric}: validation gives {', '.join(PANEL_METRICS)}.")
        if self.resume_mode not in RESUME_MODES:
            raise UserError(f"trainer.resume_mode={self.resume_mode}: choose one of {', '.join(RESUME_MODES)}.")
        patience = self.early_stopping_patience
        if patience and self.test_freq <= 0:
            raise UserError(
                f"trainer.early_stopping_patience={patience} counts validations on the way, and there are none: "
                "set trainer.test_freq above 0."
            )


MISMATCH_LIMIT, MISMATCH_LIMIT_BFLOAT16 = 0.01, 0.1
"""Mean |engine - learner| log-prob that stops a run. In bfloat16 rounding alone makes 0.01 to 0.04 per token."""


def default_kl_controller() -> kl.Controller:
    """The controller of the schema's defaults."""
    return kl.Controller(
        KLControlConfig.type, KLControlConfig.kl_coef, KLControlConfig.target_kl, KLControlConfig.horizon
    )


@dataclass(frozen=True)
class GroupFilter:
    """With `enable`, a step trains only on groups with signal, and draws up to
    `max_num_gen_batches` batches of tasks to fill up."""

    enable: bool = default_of(FilterGroupsConfig, "enable")
    max_num_gen_batches: int = default_of(FilterGroupsConfig, "max_num_gen_batches")


@dataclass(frozen=True)
class CurriculumSettings:
    """Tasks are sorted by `field` into levels.

    The next level is opened once `threshold` of the last `window` episodes of the hardest open level succeeded.
    """

    field: str = default_of(CurriculumConfig, "field")
    threshold: float = default_of(CurriculumConfig, "threshold")
    window: int = default_of(CurriculumConfig, "window")


@dataclass(frozen=True)
class RLSettings:
    """How to train by reinforcement, under the names of the configuration's keys.

    `loss_agg_mode` of None is the estimator's own. `ppo_mini_batch_size` counts tasks (None: all of a step).
    `tis_imp_ratio_cap` above 0 recomputes the old log-probs in the learner and corrects for the engine's with ratios
    capped there. `mismatch_limit` is the mean |engine - learner| log-prob that stops the run.
    `overlap` rolls out the next step's batch while this one's is trained on: from the second step on, what is
    trained on was sampled by the weights of the step before, and ratios are taken against those.
    `max_staleness` above 0 rolls out the batches of up to that many coming steps, while weights change between turns.
    """

    total_training_steps: int = at_least(1, 50)
    train_batch_size: int = default_of(DataConfig, "train_batch_size")
    num_chains: int = default_of(AgentConfig, "num_chains")
    adv_estimator: str = default_of(AlgorithmConfig, "adv_estimator")
    estimation: EstimatorSettings = field(default_factory=EstimatorSettings)
    loss_agg_mode: str | None = default_of(ActorConfig, "loss_agg_mode")
    lr: float = default_of(OptimConfig, "lr")
    lr_warmup_steps: int = default_of(OptimConfig, "lr_warmup_steps")
    warmup_style: str = default_of(OptimConfig, "warmup_style")
    min_lr_ratio: float = default_of(OptimConfig, "min_lr_ratio")
    weight_decay: float = default_of(OptimConfig, "weight_decay")
    grad_clip: float = default_of(ActorConfig, "grad_clip")
    objective: Objective = field(default_factory=Objective)
    ppo_epochs: int = default_of(ActorConfig, "ppo_epochs")
    ppo_mini_batch_size: int | None = default_of(ActorConfig, "ppo_mini_batch_size")
    tis_imp_ratio_cap: float = default_of(ActorConfig, "tis_imp_ratio_cap")
    use_kl_in_reward: bool = default_of(AlgorithmConfig, "use_kl_in_reward")
    kl_penalty: str = default_of(AlgorithmConfig, "kl_penalty")
    kl_ctrl: kl.Controller = field(default_factory=default_kl_controller)
    critic: CriticSettings = field(default_factory=CriticSettings)
    critic_warmup: int = default_of(TrainerConfig, "critic_warmup")
    filter_groups: GroupFilter = field(default_factory=GroupFilter)
    group_reward: str | None = default_of(GroupRewardConfig, "name")
    group_reward_weight: float = default_of(GroupRewardConfig, "weight")
    curriculum: CurriculumSettings | None = None
    error_budget: float = default_of(AlgorithmConfig, "error_budget")
    mismatch_limit: float = at_least(0, MISMATCH_LIMIT)
    overlap: bool = default_of(TrainerConfig, "overlap")
    max_staleness: int = default_of(TrainerConfig, "max_staleness")
    seed: int = default_of(TrainerConfig, "seed")

    def __post_init__(self) -> None:
        check_fields(self)
        name = self.adv_estimator
        if name not in ESTIMATORS:
            raise UserError(f"Unknown advantage estimator '{name}'.{did_you_mean(name, ESTIMATORS)}")
        # A misspelt schedule, aggregation or KL estimator is an error now, not after the first rollout.
        learning_rate(0, self.total_training_steps, self.lr, self.warmup_style)
        losses.token_weights([[1]], self.loss_aggregation)
        check_kl_kind(self.kl_penalty)
        self._check_kl_controller()
        estimator = ESTIMATORS[name]
        if self.num_chains < estimator.min_group_size:
            raise UserError(
                f"{name} compares the chains of one task: agent.num_chains must be at least {estimator.min_group_size}."
            )
        if self.critic_warmup > 0 and not estimator.needs_critic:
            raise UserError(
                f"trainer.critic_warmup={self.critic_warmup} trains a critic alone, and {name} has none; leave it out."
            )
        if self.group_reward is not None and self.estimation.role_credit == "own":
            raise UserError(
                "algorithm.group_reward adjusts the episode's reward, and algorithm.role_credit=own gives each role "
                "its own: use role_credit=shared with it."
            )
        if self.filter_groups.enable and self.num_chains < 2:
            raise UserError(
                "algorithm.filter_groups compares the chains of one task: agent.num_chains must be above 1."
            )

    def _check_kl_controller(self) -> None:
        control = self.kl_ctrl
        if control.type not in kl.CONTROLLERS:
            hint = did_you_mean(control.type, kl.CONTROLLERS)
            raise UserError(f"Unknown algorithm.kl_ctrl.type '{control.type}'.{hint}")
        if control.type == "adaptive" and (control.horizon <= 0 or control.target_kl <= 0):
            raise UserError("algorithm.kl_ctrl.horizon and target_kl must be above 0 for the adaptive controller.")

    @property
    def optimizer(self) -> OptimizerSettings:
        """The policy's optimizer."""
        return OptimizerSettings(self.lr, self.weight_decay, grad_clip=self.grad_clip)

    @property
    def updates_during_rollouts(self) -> bool:
        """Whether the learner updates its weights while episodes are under way."""
        return self.overlap or self.max_staleness > 0

    @property
    def loss_aggregation(self) -> str:
        """How token losses are averaged: as chosen, as GSPO's paper has it, or the estimator's own way."""
        own = (
            "seq-mean-token-mean" if self.objective.loss_mode == "gspo" else ESTIMATORS[self.adv_estimator].aggregation
        )
        return self.loss_agg_mode or own

    @property
    def needs_reference(self) -> bool:
        """Whether a KL to the reference policy is part of the loss or of the reward."""
        return self.use_kl_in_reward or self.objective.kl_loss_coef != 0


MODEL = "actor_rollout_ref.model."


def model_name(config: TrainConfig) -> str:
    """The model: `actor_rollout_ref.model.path` and `agent.model_name_or_path` are two names of one key."""
    path, name = config.actor_rollout_ref.model.path, config.agent.model_name_or_path
    if path and name and path != name:
        raise UserError(
            f"actor_rollout_ref.model.path={path} and agent.model_name_or_path={name} name two models; give one."
        )
    return path or name or "tiny"


def environment_name(config: TrainConfig) -> str:
    """The environment that is named, or the one that a file's tasks, this agent and these tools belong to."""
    agent = config.agent
    if agent.environment is not None:
        return agent.environment
    if not config.data.train_files:
        return "math"
    if agent.agent_type == "code":
        return "code"
    return "search" if "google_search" in (agent.tools or ()) else "tools"


def reply_format(config: TrainConfig) -> str:
    """The format of replies; tool calls of an external agent are written in that of `hf`."""
    return "hf" if config.agent.agent_type == EXTERNAL else config.agent.agent_type


def max_reply_tokens(config: TrainConfig) -> int:
    """Tokens of one reply, at most."""
    return config.agent.max_tokens_per_turn or config.actor_rollout_ref.rollout.response_length


def max_turns(config: TrainConfig) -> int:
    """Turns of an episode, at most."""
    return config.agent.max_turns if config.agent.use_agent else 1


def external_agent(config: TrainConfig) -> ExternalAgent | None:
    """The agent's own program, where it has one; keys of it without agent.agent_type=external are errors."""
    agent = config.agent
    if agent.agent_type == EXTERNAL:
        return ExternalAgent(
            agent.command or "", agent.reward_from, agent.keep_system, agent.train_abandoned, agent.sandbox
        ).checked()
    unused_values: dict[str, Any] = {
        "command": None, "reward_from": "environment", "keep_system": False, "train_abandoned": False, "sandbox": False,
    }  # fmt: skip
    for name, unused in unused_values.items():
        if getattr(agent, name) != unused:
            raise UserError(f"agent.{name} is for external agents: set agent.agent_type=external too.")
    return None


def training_sampling(config: TrainConfig, temperature: float, validating: bool) -> Sampling:
    """How replies are sampled: in validation from the whole distribution."""
    sampling, rollout = Sampling(temperature, max_tokens=max_reply_tokens(config)), config.actor_rollout_ref.rollout
    if validating:
        return sampling
    return replace(sampling, top_k=max(0, rollout.top_k), top_p=rollout.top_p, min_p=rollout.min_p)


def run_folder(config: TrainConfig) -> Path:
    trainer = config.trainer
    return Path(trainer.default_local_dir) / trainer.project_name / (trainer.experiment_name or run_name(config))


def run_name(config: TrainConfig) -> str:
    """The name of a run that has none: it depends on what a resumed run must have the same."""
    kind = f"{environment_name(config)}-{config.algorithm.adv_estimator}-{Path(model_name(config)).stem}"
    digest = content_hash(continued_values(config))
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', kind)}-{digest[:6]}"


def validates(config: TrainConfig) -> bool:
    """Whether the run validates at all."""
    return config.trainer.val_before_train or config.trainer.test_freq > 0


def find_device(config: TrainConfig) -> Device:
    """The device and precision of the policy. No GPUs per node means the CPU."""
    trainer = config.trainer
    without_gpu = trainer.n_gpus_per_node == 0
    if without_gpu and trainer.device not in ("auto", "cpu"):
        raise UserError(f"trainer.device={trainer.device} and trainer.n_gpus_per_node=0 do not go together; choose.")
    name = "cpu" if without_gpu else trainer.device
    return loader.resolve_device(name, config.actor_rollout_ref.model.dtype, "trainer.device", f"{MODEL}dtype")


def resolve_device(config: TrainConfig) -> Device:
    """Find the device and write it into the configuration: a run resumed on another one would not be the same run."""
    device = find_device(config)
    config.trainer.device, config.actor_rollout_ref.model.dtype = device.device, device.dtype_name
    return device


def resolve_policy(config: TrainConfig) -> ModelRef:
    """The model to train. An adapter is trained further, whether `path` or `lora_adapter_path` names it."""
    model, ref = config.actor_rollout_ref.model, resolve_model(model_name(config))
    if ref.adapter is not None and (model.lora_rank or model.lora_adapter_path):
        raise UserError(
            f"'{ref.adapter}' is an adapter, which is trained further: leave out actor_rollout_ref.model.lora_rank and "
            "lora_adapter_path, or merge it first (`practicum merge`)."
        )
    return replace(ref, adapter=model.lora_adapter_path) if model.lora_adapter_path else ref


def max_num_seqs(config: TrainConfig, on: Device) -> int:
    """Replies decoded at once."""
    chosen = config.actor_rollout_ref.rollout.max_num_seqs
    return on.batch_size if chosen is None else chosen


def max_micro_batch_tokens(config: TrainConfig, on: Device) -> int:
    """Tokens of one forward pass, at most. On a CPU smaller passes are as fast, and need less memory."""
    limit = config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    return limit if on.on_gpu else min(limit, MicroBatchLimits.tokens)


def mismatch_limit(config: TrainConfig) -> float:
    """The mean |engine - learner| log-prob that stops the run."""
    limit, rollout = config.algorithm.mismatch_limit, config.actor_rollout_ref.rollout
    if limit is not None:
        return limit
    engine_dtype = rollout.vllm.dtype if rollout.name == "vllm" else "float32"
    return MISMATCH_LIMIT_BFLOAT16 if "bfloat16" in (engine_dtype, find_device(config).dtype_name) else MISMATCH_LIMIT


def training_steps(config: TrainConfig, num_tasks: int | None = None) -> int:
    """The number of steps: as given, or from epochs over the `num_tasks` tasks of a file or of data.num_train_tasks."""
    trainer = config.trainer
    if trainer.total_training_steps is not None:
        return trainer.total_training_steps
    if trainer.total_epochs is None:
        raise UserError(
            "How long? Set trainer.total_training_steps (or trainer.total_epochs with data.train_files or "
            "data.num_train_tasks)."
        )
    num_tasks = config.data.num_train_tasks if num_tasks is None else num_tasks
    if not _has_epochs(config) or num_tasks is None:
        raise UserError(
            "trainer.total_epochs counts passes over data.train_files or data.num_train_tasks generated tasks; set one "
            "of these, or trainer.total_training_steps."
        )
    return max(1, trainer.total_epochs * (num_tasks // config.data.train_batch_size))


def _has_epochs(config: TrainConfig) -> bool:
    """Whether the tasks are finitely many, so that they can be passed over."""
    data = config.data
    return bool(data.train_files or data.from_trajectories or data.num_train_tasks)


def rl_settings(config: TrainConfig, steps: int) -> RLSettings:
    """The trainer's settings; what no run can have is an error."""
    algorithm, actor, curriculum = config.algorithm, config.actor_rollout_ref.actor, config.data.curriculum
    settings = RLSettings(
        total_training_steps=steps,
        train_batch_size=config.data.train_batch_size,
        num_chains=config.agent.num_chains,
        adv_estimator=algorithm.adv_estimator,
        estimation=estimator_settings(config),
        loss_agg_mode=actor.loss_agg_mode,
        lr=actor.optim.lr,
        lr_warmup_steps=actor.optim.lr_warmup_steps,
        warmup_style=actor.optim.warmup_style,
        min_lr_ratio=actor.optim.min_lr_ratio,
        weight_decay=actor.optim.weight_decay,
        grad_clip=actor.grad_clip,
        objective=objective(config),
        ppo_epochs=actor.ppo_epochs,
        ppo_mini_batch_size=actor.ppo_mini_batch_size,
        tis_imp_ratio_cap=actor.tis_imp_ratio_cap,
        use_kl_in_reward=algorithm.use_kl_in_reward,
        kl_penalty=algorithm.kl_penalty,
        kl_ctrl=kl.Controller(
            algorithm.kl_ctrl.type, algorithm.kl_ctrl.kl_coef, algorithm.kl_ctrl.target_kl, algorithm.kl_ctrl.horizon
        ),
        critic=critic_settings(config),
        critic_warmup=config.trainer.critic_warmup,
        filter_groups=GroupFilter(algorithm.filter_groups.enable, algorithm.filter_groups.max_num_gen_batches),
        group_reward=algorithm.group_reward.name,
        group_reward_weight=algorithm.group_reward.weight,
        curriculum=CurriculumSettings(curriculum.field, curriculum.threshold, curriculum.window)
        if curriculum.enable
        else None,
        error_budget=algorithm.error_budget,
        mismatch_limit=mismatch_limit(config),
        overlap=config.trainer.overlap,
        max_staleness=config.trainer.max_staleness,
        seed=config.trainer.seed,
    )
    check_adapter(config)
    return settings


def estimator_settings(config: TrainConfig) -> EstimatorSettings:
    algorithm, buffer = config.algorithm, config.algorithm.overlong_buffer
    max_tokens = max_reply_tokens(config)
    role_limits = {
        name: role.max_tokens_per_turn
        for name, role in config.agent.roles.items()
        if role.max_tokens_per_turn is not None and name in (config.agent.train_roles or ())
    }
    shortest = min([max_tokens, *role_limits.values()])
    if buffer.enable and buffer.len > shortest:
        raise UserError(
            f"algorithm.overlong_buffer.len={buffer.len} is more than a reply may have ({shortest} tokens); lower it."
        )
    overlong = OverlongBuffer(buffer.len, buffer.penalty_factor, max_tokens, role_limits) if buffer.enable else None
    return EstimatorSettings(
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
        turn_rewards=algorithm.turn_rewards,
        row_weighted=algorithm.row_weighted,
        bootstrap_truncated=algorithm.bootstrap_truncated,
        overlong_buffer=overlong,
        train_roles=None if config.agent.train_roles is None else tuple(config.agent.train_roles),
        role_credit=algorithm.role_credit,
    )


def objective(config: TrainConfig) -> Objective:
    """The policy gradient, with the KL to the reference where `use_kl_loss` asks for it."""
    actor = config.actor_rollout_ref.actor
    return Objective(
        "pg",
        clip_ratio_low=actor.clip_ratio_low,
        clip_ratio_high=actor.clip_ratio_high,
        clip_ratio_c=actor.clip_ratio_c,
        entropy_coeff=actor.entropy_coeff,
        kl_loss_coef=actor.kl_loss_coef if actor.use_kl_loss else 0.0,
        kl_loss_type=actor.kl_loss_type,
        loss_mode=actor.policy_loss.loss_mode,
    )


def critic_settings(config: TrainConfig) -> CriticSettings:
    critic = config.critic
    return CriticSettings(
        lr=critic.optim.lr,
        weight_decay=critic.optim.weight_decay,
        grad_clip=critic.grad_clip,
        vf_coef=critic.vf_coef,
        cliprange_value=critic.cliprange_value,
        ppo_epochs=critic.ppo_epochs,
        ppo_mini_batch_size=critic.ppo_mini_batch_size,
    )


def check_adapter(config: TrainConfig) -> None:
    """Refuse two adapters, or a dropout in the policy that samples."""
    model = config.actor_rollout_ref.model
    if model.lora_adapter_path and model.lora_rank:
        raise UserError(
            f"{MODEL}lora_adapter_path brings an adapter with a rank of its own; leave out {MODEL}lora_rank, "
            "or the path for a new adapter."
        )
    if model.lora_rank and model.lora_dropout:
        raise UserError(
            f"{MODEL}lora_dropout must be 0 here: a policy that drops weights at random is not the one that sampled."
        )


def run_settings(config: TrainConfig, steps: int) -> RunSettings:
    """When the run validates, saves and stops."""
    trainer = config.trainer
    return RunSettings(
        total_training_steps=steps,
        save_freq=trainer.save_freq,
        save_total_limit=trainer.save_total_limit,
        test_freq=trainer.test_freq,
        val_before_train=trainer.val_before_train,
        required_figures=trainer.required_figures,
        best_metric=trainer.best_metric,
        early_stopping_patience=trainer.early_stopping_patience,
        resume_mode=trainer.resume_mode,
        resume_from_path=trainer.resume_from_path,
        keep_best=True,
    )
