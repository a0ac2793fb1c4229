"""Schema of `practicum dpo`: HALO's keys and defaults of preference training, and those of `practicum sft` else."""

from __future__ import annotations

from dataclasses import dataclass, field

from practicum.config.fields import above, at_least, between
from practicum.config.health import SupervisedHealthSettings
from practicum.config.sft import SFTTrainingConfig, SupervisedDataConfig, SupervisedModelConfig


@dataclass
class DPOTrainingConfig(SFTTrainingConfig):
    """The keys of supervised fine-tuning, and those of the preference loss."""

    lora_r: int = at_least(1, 16)
    """Rank of the adapter."""
    lora_alpha: float = at_least(0, 32.0)
    """Scale of the adapter."""
    lora_dropout: float = between(0, 1, 0.0, includes_high=False)
    """Dropout before the adapter; the margin that decides how much a pair counts is computed without it."""
    num_epochs: int = at_least(1, 2)
    """Passes over the pairs."""
    learning_rate: float = above(0, 5.0e-5)
    """Peak learning rate."""
    warmup_ratio: float = between(0, 1, 0.1)
    """Share of all updates that is linear warm-up."""
    beta: float = above(0, 0.1)
    """Strength of the pull to the reference policy."""
    loss: str = "dpo"
    """`dpo`, `ipo` or `kto`."""
    label_smoothing: float = between(0, 0.5, 0.0, includes_high=False)
    """Share of the pairs taken to be labelled the wrong way round."""
    save_steps: int = at_least(-1, 50)
    """Updates between checkpoints; 0 and below: none."""


@dataclass
class DPOConfig:
    """Everything `practicum dpo` reads."""

    model: SupervisedModelConfig = field(default_factory=SupervisedModelConfig)
    data: SupervisedDataConfig = field(default_factory=SupervisedDataConfig)
    training: DPOTrainingConfig = field(default_factory=DPOTrainingConfig)
    health: SupervisedHealthSettings = field(default_factory=SupervisedHealthSettings)
    output_dir: str = "runs/dpo"
    """Folder for checkpoints, metrics and the trained model."""
