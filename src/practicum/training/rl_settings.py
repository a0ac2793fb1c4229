"""Settings of reinforcement learning. Defaults and bounds are those of the configuration's schema."""

from __future__ import annotations

from dataclasses import dataclass, field

from practicum.algorithms import aggregation, kl
from practicum.config.actor_rollout_ref import ActorConfig, OptimConfig
from practicum.config.fields import at_least, check_fields, default_of
from practicum.config.train import (
    AgentConfig,
    AlgorithmConfig,
    DataConfig,
    KLControlConfig,
    TrainerConfig,
)
from practicum.errors import UserError, did_you_mean
from practicum.training.critic import CriticSettings
from practicum.training.curriculum import CurriculumSettings, GroupFilter
from practicum.training.estimators import ESTIMATORS, EstimatorSettings
from practicum.training.objective import Objective
from practicum.training.optimizer import OptimizerSettings, learning_rate

MISMATCH_LIMIT, MISMATCH_LIMIT_BFLOAT16 = 0.01, 0.1
"""Mean |engine - learner| log-prob that stops a run. In bfloat16 rounding alone makes 0.01 to 0.04 per token."""


def default_kl_controller() -> kl.Controller:
    """The controller of the schema's defaults."""
    return kl.Controller(
        KLControlConfig.type, KLControlConfig.kl_coef, KLControlConfig.target_kl, KLControlConfig.horizon
    )


@dataclass(frozen=True)
class RLSettings:
    """How to train by reinforcement, under the names of the configuration's keys.

    `loss_agg_mode` of None is the estimator's own. `ppo_mini_batch_size` counts tasks (None: all of a step).
    `tis_imp_ratio_cap` above 0 recomputes the old log-probs in the learner and corrects for the engine's with ratios
    capped there. `mismatch_limit` is the mean |engine - learner| log-prob that stops the run.
    `overlap` rolls out the next step's batch while this one's is trained on: from the second step on, what is
    trained on was sampled by the weights of the step before, and ratios are taken against those.
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
    curriculum: CurriculumSettings | None = None
    error_budget: float = default_of(AlgorithmConfig, "error_budget")
    mismatch_limit: float = at_least(0, MISMATCH_LIMIT)
    overlap: bool = default_of(TrainerConfig, "overlap")
    seed: int = default_of(TrainerConfig, "seed")

    def __post_init__(self) -> None:
        check_fields(self)
        name = self.adv_estimator
        if name not in ESTIMATORS:
            raise UserError(f"Unknown advantage estimator '{name}'.{did_you_mean(name, ESTIMATORS)}")
        # A misspelt schedule, aggregation or KL estimator is an error now, not after the first rollout.
        learning_rate(0, self.total_training_steps, self.lr, self.warmup_style)
        aggregation.token_weights([[1]], self.loss_aggregation)
        kl.check(self.kl_penalty)
        estimator = ESTIMATORS[name]
        if self.num_chains < estimator.min_group_size:
            raise UserError(
                f"{name} compares the chains of one task: agent.num_chains must be at least {estimator.min_group_size}."
            )
        if self.critic_warmup > 0 and not estimator.needs_critic:
            raise UserError(
                f"trainer.critic_warmup={self.critic_warmup} trains a critic alone, and {name} has none; leave it out."
            )
        if self.filter_groups.enable and self.num_chains < 2:
            raise UserError(
                "algorithm.filter_groups compares the chains of one task: agent.num_chains must be above 1."
            )

    @property
    def optimizer(self) -> OptimizerSettings:
        """The policy's optimizer."""
        return OptimizerSettings(self.lr, self.weight_decay, grad_clip=self.grad_clip)

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
