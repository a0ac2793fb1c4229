"""The settings of reinforcement learning, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from practicum.algorithms import aggregation, kl
from practicum.errors import UserError, did_you_mean
from practicum.training.critic import CriticSettings
from practicum.training.curriculum import CurriculumSettings
from practicum.training.estimators import ESTIMATORS, EstimatorSettings
from practicum.training.group_filter import GroupFilter
from practicum.training.lr_schedule import learning_rate
from practicum.training.objective import Objective
from practicum.training.optimizer import OptimizerSettings


@dataclass(frozen=True)
class RLSettings:
    """Settings of reinforcement learning.

    `chains` is the number of attempts at each of a step's `tasks_per_step` tasks. `aggregation` of None is the
    estimator's own. `mini_batch` counts tasks (None: all of a step's). `importance_cap` above 0 recomputes the old
    log-probs in the learner and corrects for the engine's with importance weights of at most this cap.
    `mismatch_limit`: the mean |engine - learner| log-prob per token that stops the run. `overlap` rolls out the next
    step's batch while this one's is trained on: from the second step on, what is trained on was sampled by the weights
    of the step before, and ratios are computed against those.
    """

    steps: int = 50
    tasks_per_step: int = 16
    chains: int = 8
    estimator: str = "grpo"
    credit: EstimatorSettings = field(default_factory=EstimatorSettings)
    aggregation: str | None = None
    lr: float = 3e-4
    warmup: int = 5
    schedule: str = "constant"
    min_lr_ratio: float = 0.1
    objective: Objective = field(default_factory=Objective)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    epochs: int = 1
    mini_batch: int | None = None
    importance_cap: float = 0.0
    kl_in_reward: bool = False
    kl_penalty: str = "kl"
    kl_control: kl.Controller = field(default_factory=kl.Controller)
    critic: CriticSettings = field(default_factory=CriticSettings)
    critic_mini_batch: int | None = None
    critic_warmup: int = 0
    group_filter: GroupFilter = field(default_factory=GroupFilter)
    curriculum: CurriculumSettings | None = None
    error_budget: float = 0.5
    mismatch_limit: float = 0.1
    overlap: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise UserError(
                f"Unknown advantage estimator '{self.estimator}'.{did_you_mean(self.estimator, ESTIMATORS)}"
            )
        if self.tasks_per_step < 1 or self.steps < 1:
            raise UserError("data.train_batch_size and trainer.total_training_steps must be at least 1.")
        learning_rate(0, self.steps, self.lr, self.schedule)  # a misspelt schedule is an error now, not later
        aggregation.token_weights([[1]], self.loss_aggregation)
        kl.check(self.kl_penalty)
        min_chains = ESTIMATORS[self.estimator].min_group_size
        if self.chains < min_chains:
            raise UserError(
                f"{self.estimator} compares the chains of one task: agent.num_chains must be at least {min_chains}."
            )
        if self.critic_warmup > 0 and not ESTIMATORS[self.estimator].needs_critic:
            raise UserError(
                f"trainer.critic_warmup={self.critic_warmup} trains a critic alone, and {self.estimator} has none; "
                "leave it out."
            )
        if self.group_filter.enable and self.chains < 2:
            raise UserError(
                "algorithm.filter_groups compares the chains of one task: agent.num_chains must be above 1."
            )
        if self.epochs < 1 or self.critic.epochs < 1 or self.group_filter.rounds < 1:
            raise UserError("ppo_epochs and algorithm.filter_groups.max_num_gen_batches must be at least 1.")

    @property
    def loss_aggregation(self) -> str:
        """How token losses are averaged: as set, or as the estimator's paper has it."""
        return self.aggregation or ESTIMATORS[self.estimator].aggregation

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen copy of the start policy is needed."""
        return self.kl_in_reward or self.objective.kl_coeff != 0
