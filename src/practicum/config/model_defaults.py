"""Defaults of the built-in `tiny` model on a CPU: sizes, learning rates and validation that get somewhere in a minute.

The defaults of the schemas are those of AgentFly, Affine and HALO, for models a thousand times as large on a GPU. These
here take their place where no recipe is named (a recipe is a whole experiment) for keys that nobody set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from practicum.config.dpo import DPOConfig
from practicum.config.overrides import Resolved, Schema
from practicum.config.pipeline import PipelineConfig
from practicum.config.sft import SFTConfig
from practicum.config.train import TrainConfig

SUPERVISED = {
    "training.batch_size": 8,
    "training.gradient_accumulation_steps": 1,
    "training.learning_rate": 1e-3,
    "training.warmup_steps": 30,
    "training.eval_steps": 100,
}
TINY: Mapping[type, Mapping[str, Any]] = {
    TrainConfig: {
        "trainer.total_training_steps": 20,
        "trainer.test_freq": 10,
        "data.val_batch_size": 50,
        "actor_rollout_ref.rollout.response_length": 32,
        "actor_rollout_ref.actor.optim.lr": 3e-4,
        "critic.optim.lr": 1e-3,
    },
    SFTConfig: SUPERVISED,
    DPOConfig: {
        "training.batch_size": 8,
        "training.gradient_accumulation_steps": 1,
        "training.learning_rate": 5e-4,
    },
    PipelineConfig: {
        **SUPERVISED,
        "data.affine.num_samples": 1200,
        "data.agentgym.num_episodes": 500,
        "data.agentgym.max_episode_length": 10,
        "data.max_response_tokens": 64,
        "rl_training.num_rollouts": 35,
        "rl_training.rollout_batch_size": 64,
        "rl_training.learning_rate": 2e-4,
        "rl_training.value_learning_rate": 1e-3,
        "evaluation.num_eval_samples": 100,
    },
}
"""By schema, the keys that have another default for `tiny` on a CPU."""


def with_model_defaults(resolved: Resolved[Schema]) -> Resolved[Schema]:
    """The configuration with the defaults of `tiny` on a CPU, where it is about that and no recipe is named."""
    config = resolved.config
    if resolved.has_recipe or not _is_tiny(config) or not _is_on_cpu(config):
        return resolved
    values = dict(TINY[type(config)])
    if "trainer.total_epochs" in resolved.sources:
        del values["trainer.total_training_steps"]
    if isinstance(config, TrainConfig) and not _can_validate(config):
        del values["trainer.test_freq"], values["data.val_batch_size"]
    return resolved.with_defaults(values)


def _can_validate(config: TrainConfig) -> bool:
    """Whether validation is wanted, and there are tasks for it that training does not use."""
    own_files = bool(config.data.train_files) and not config.data.val_files
    return config.trainer.val_before_train and not own_files and config.data.from_trajectories is None


def _is_tiny(config: Any) -> bool:
    if isinstance(config, TrainConfig):
        return (config.actor_rollout_ref.model.path or config.agent.model_name_or_path or "tiny") == "tiny"
    return bool(config.model.path == "tiny")


def _is_on_cpu(config: Any) -> bool:
    if isinstance(config, TrainConfig):
        device = "cpu" if config.trainer.n_gpus_per_node == 0 else config.trainer.device
    else:
        device = config.model.device
    if device != "auto":
        return bool(device == "cpu")
    import torch  # slow to import: only where the answer depends on the machine

    return not torch.cuda.is_available()
