"""Schema of `practicum pipeline`: the configuration file of Affine's training pipeline, with its keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from practicum.config.fields import at_least, between, unbounded
from practicum.config.sft import SFTTrainingConfig, SupervisedModelConfig

AFFINE_ENVIRONMENTS = ["affine:sat", "affine:abd", "affine:ded"]
AGENTGYM_ENVIRONMENTS = [f"agentgym:{name}" for name in ("webshop", "alfworld", "babyai", "sciworld", "textcraft")]


@dataclass
class AffineDataConfig:
    """Demonstrations of Affine's environments."""

    num_samples: int = at_least(0, 10_000)
    """Demonstrations in all, in equal parts."""
    dataset: str | None = None
    """Rows for abd and ded: a file, a folder with index.json, or a hub id (`satpalsr/rl-python`); null: generated."""
    buffer_size: int = at_least(1, 5)
    """Rows asked for at a time while the data set of a hub id is fetched."""
    environments: list[str] = field(default_factory=lambda: list(AFFINE_ENVIRONMENTS))
    """Environments of this group."""


@dataclass
class AgentGymDataConfig:
    """Demonstrations of AgentGym's environments."""

    num_episodes: int = at_least(0, 5_000)
    """Demonstrations in all, in equal parts."""
    max_episode_length: int = at_least(1, 50)
    """Turns of an episode, at most, in all stages."""
    environments: list[str] = field(default_factory=lambda: list(AGENTGYM_ENVIRONMENTS))
    """Environments of this group."""


@dataclass
class PipelineDataConfig:
    """Environments and demonstrations."""

    affine: AffineDataConfig = field(default_factory=AffineDataConfig)
    agentgym: AgentGymDataConfig = field(default_factory=AgentGymDataConfig)
    environment_args: dict[str, Any] = field(default_factory=dict)
    """Options of an environment, by its name."""
    val_split: float = between(0, 1, 0.1, includes_high=False)
    """Share of the demonstrations that the SFT loss is evaluated on."""
    max_response_tokens: int = at_least(1, 1024)
    """Tokens of one reply, at most, in all stages."""


@dataclass
class RLTrainingConfig:
    """The RL stage. What has no key here goes into `overrides`."""

    algorithm: str = "ppo"
    """Must be `ppo`; for another estimator use `overrides`."""
    ppo_epochs: int = at_least(1, 4)
    """Passes over the batch of one step."""
    num_rollouts: int = at_least(1, 100)
    """Training steps."""
    rollout_batch_size: int = at_least(1, 4)
    """Tasks per step."""
    num_chains: int = at_least(1, 1)
    """Episodes per task."""
    clip_range: float = at_least(0, 0.2)
    """How far from 1 the probability ratio counts."""
    vf_coef: float = at_least(0, 0.5)
    """Coefficient of the squared error in the critic's loss (critic.vf_coef)."""
    entropy_coef: float = unbounded(0.01)
    """Coefficient of the entropy bonus."""
    gae_lambda: float = between(0, 1, 0.95)
    """GAE's lambda."""
    gamma: float = between(0, 1, 0.99)
    """Discount per token."""
    learning_rate: float = at_least(0, 1.0e-5)
    """Learning rate of the policy."""
    value_learning_rate: float = at_least(0, 1.0e-4)
    """Learning rate of the critic."""
    max_grad_norm: float = at_least(0, 1.0)
    """Largest norm of the gradients; 0: no limit."""
    kl_penalty: float = at_least(0, 0.0)
    """Coefficient of the KL to the SFT model in the loss."""
    reward: str | None = "shaped"
    """`shaped` (Affine's), `native`, or a reward by name; null: as data.environment_args say."""
    reward_function: str | None = None
    """`path/to/file.py:function` instead."""
    environments: list[str] | None = None
    """Environments trained on; null: all of data."""
    shares: dict[str, float] = field(default_factory=dict)
    """Weights of the environments; 1 where none is given."""
    save_steps: int = at_least(-1, 10)
    """Steps between checkpoints; 0 and below: none."""
    overrides: list[str] = field(default_factory=list)
    """Further keys of `practicum train`, as KEY=VALUE."""


@dataclass
class EvaluationConfig:
    """The evaluation after each stage."""

    environments: list[str] | None = None
    """Environments evaluated on; null: all of data."""
    num_eval_samples: int = at_least(1, 200)
    """Tasks per environment."""
    confidence: float = between(0, 1, 0.95, includes_low=False, includes_high=False)
    """Level of the intervals."""
    temperature: float = at_least(0, 0.0)
    """Sampling temperature; 0: greedy."""


@dataclass
class TrackingConfig:
    """Weights & Biases."""

    use_wandb: bool = False
    """Log the RL stage to W&B."""
    wandb_project: str = "affine-training"
    """Its project."""


@dataclass
class PipelineConfig:
    """Everything `practicum pipeline` reads."""

    output_dir: str = "runs/affine"
    """Folder of all stages."""
    seed: int = unbounded(42)
    """Seed of all stages."""
    model: SupervisedModelConfig = field(default_factory=SupervisedModelConfig)
    data: PipelineDataConfig = field(default_factory=PipelineDataConfig)
    training: SFTTrainingConfig = field(default_factory=SFTTrainingConfig)
    rl_training: RLTrainingConfig = field(default_factory=RLTrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
