"""The stages of Affine's pipeline, and the configuration that each of them gets.

collect → evaluate base → SFT → evaluate → RL → evaluate. The keys are Affine's. `runner.py` runs the stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from practicum import registry
from practicum.config.overrides import RECIPES, Resolved, read_overrides, schema_keys, to_yaml
from practicum.config.pipeline import PipelineConfig, RLTrainingConfig
from practicum.config.resolve import READ_BY_ESTIMATORS, resolve_train, with_model_defaults
from practicum.config.resolve_supervised import check_supervised, check_unused_supervised
from practicum.config.sft import SFTConfig, SupervisedDataConfig
from practicum.config.train import TrainConfig
from practicum.data.hub_dataset import fetch_dataset, local_path
from practicum.data.run_folder import write_atomic
from practicum.environments.mix import MixEnvironment, interleave
from practicum.errors import UserError, did_you_mean
from practicum.training.build import training_tasks
from practicum.training.build_supervised import sft_settings
from practicum.training.dry_run import check_supervised_model, missing_files, sentence_of
from practicum.training.settings import reply_format, rl_settings, training_steps

MODELS = ("base", "sft", "rl")
"""The models that are evaluated, in this order."""
STAGES = ("collect", "eval-base", "sft", "eval-sft", "train", "eval-rl")
"""In the order in which they run."""
FIRST_READER = {"evaluation.": "eval-base", "training.": "sft", "rl_training.": "train"}
"""Prefixes of keys, and the first stage that reads them."""
RESERVED_KEYS = ("agent.environment", "agent.model_name", "actor_rollout_ref.model.path", "trainer.default_local_dir",
        "trainer.project_name", "trainer.experiment_name", "data.train_files", "data.from_trajectories")  # fmt: skip
"""Prefixes of keys of `practicum train` that the pipeline sets itself."""
REWARDS = ("shaped", "native", *registry.REWARDS)


def resolve(overrides: list[str], recipes: Path = RECIPES) -> Resolved[PipelineConfig]:
    """Defaults, the recipe, the overrides. Every stage is checked: whatever is known to be wrong is an error now."""
    resolved = with_model_defaults(read_overrides(PipelineConfig, overrides, recipes))
    config = resolved.config
    if "training.seed" not in resolved.chosen:
        config.training = replace(config.training, seed=config.seed)
    check_environments(config)
    check_rl_training(config.rl_training)
    if config.model.adapter_path:
        raise UserError("model.adapter_path does not go with the pipeline: merge it first (`practicum merge`).")
    check_supervised(sft_config(config))
    check_unused_supervised(config, {key for key in resolved.chosen if not key.startswith("data.")})
    sft_settings(config.training)
    train = rl_config(config)
    rl_settings(train, training_steps(train))
    return resolved


def check_environments(config: PipelineConfig) -> None:
    """Every environment exists, and only those of the data are named."""
    names = environments(config)
    if not names:
        raise UserError("Say what to learn: data.affine.environments or data.agentgym.environments is empty.")
    for key, mentioned in (
        ("data.environment_args", config.data.environment_args),
        ("rl_training.environments", config.rl_training.environments or ()),
        ("rl_training.shares", config.rl_training.shares),
    ):
        for name in mentioned:
            if name not in names:
                raise UserError(f"{key} names '{name}', which data does not.{did_you_mean(name, names)}")
    for name in names:
        registry.environment_class(name)


def check_rl_training(rl: RLTrainingConfig) -> None:
    """Refuse what the RL stage does not have."""
    if rl.algorithm != "ppo":
        raise UserError(f"rl_training.algorithm={rl.algorithm}: the RL stage of this pipeline is ppo; leave that out, "
                        "and for another estimator say \"rl_training.overrides=['algorithm.adv_estimator=grpo']\" "
                        "\"rl_training.num_chains=8\".")  # fmt: skip
    if rl.reward is not None and rl.reward not in REWARDS and ".py:" not in rl.reward:
        raise UserError(f"Unknown rl_training.reward '{rl.reward}'.{did_you_mean(rl.reward, REWARDS)}")


def environments(config: PipelineConfig) -> list[str]:
    """All environments of the data, each once."""
    return list(dict.fromkeys([*config.data.affine.environments, *config.data.agentgym.environments]))


def evaluated_environments(config: PipelineConfig) -> list[str]:
    return environments(config) if config.evaluation.environments is None else list(config.evaluation.environments)


def demonstrations(config: PipelineConfig) -> dict[str, int]:
    """Number of demonstrations per environment: the number of each group in equal parts."""
    counts: dict[str, int] = {}
    for count, names in (
        (config.data.affine.num_samples, config.data.affine.environments),
        (config.data.agentgym.num_episodes, config.data.agentgym.environments),
    ):
        turns = interleave(dict.fromkeys(names, 1.0), count) if names else []
        counts |= {name: turns.count(name) for name in names}
    return counts


def environment_options(config: PipelineConfig, name: str) -> dict[str, Any]:
    """The options of one environment."""
    options = dict(config.data.environment_args.get(name) or {})
    dataset = config.data.affine.dataset
    if dataset is not None and "files" not in options and registry.takes(name, "files"):
        options["files"] = dict.fromkeys(("train", "val", "test"), str(local_path(dataset)))
    return options


def folder(config: PipelineConfig, *parts: str) -> Path:
    return Path(config.output_dir, *parts)


def file_name(environment: str) -> str:
    """An environment's name as a file name: `affine:sat` is affine-sat."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in environment).lstrip(".-")


def sft_config(config: PipelineConfig) -> SFTConfig:
    return SFTConfig(
        model=config.model,
        data=SupervisedDataConfig(episodes=str(folder(config, "collect")), val_share=config.data.val_split),
        training=config.training,
        output_dir=str(folder(config, "sft")),
    )


def model_path(config: PipelineConfig, model: str) -> str:
    """The path of base, sft or rl."""
    return config.model.path if model == "base" else str(folder(config, model, "model"))


def rl_config(config: PipelineConfig) -> TrainConfig:
    """The configuration of the RL stage. Keys of `rl_training.overrides` are applied last."""
    rl, out = config.rl_training, folder(config)
    values = {
        "agent.num_chains": rl.num_chains,
        "agent.max_turns": config.data.agentgym.max_episode_length,
        "agent.reward_name": "null" if rl.reward is None else rl.reward,
        "algorithm.adv_estimator": "gae",
        **_estimator_keys(rl),
        "data.train_batch_size": rl.rollout_batch_size,
        "actor_rollout_ref.actor.ppo_epochs": rl.ppo_epochs,
        "actor_rollout_ref.actor.clip_ratio_low": rl.clip_range,
        "actor_rollout_ref.actor.clip_ratio_high": rl.clip_range,
        "actor_rollout_ref.actor.entropy_coeff": rl.entropy_coef,
        "actor_rollout_ref.actor.grad_clip": rl.max_grad_norm,
        "actor_rollout_ref.actor.optim.lr": rl.learning_rate,
        "actor_rollout_ref.actor.use_kl_loss": "true" if rl.kl_penalty else "false",
        **({"actor_rollout_ref.actor.kl_loss_coef": rl.kl_penalty} if rl.kl_penalty else {}),
        "actor_rollout_ref.rollout.response_length": config.data.max_response_tokens,
        "critic.optim.lr": rl.value_learning_rate,
        "critic.vf_coef": rl.vf_coef,
        "critic.ppo_epochs": rl.ppo_epochs,
        "critic.grad_clip": rl.max_grad_norm,
        "trainer.total_training_steps": rl.num_rollouts,
        "trainer.save_freq": rl.save_steps,
        "trainer.save_total_limit": 2,
        "trainer.seed": config.seed,
        "trainer.device": config.model.device,
        "trainer.val_before_train": "false",
        "trainer.logger": "[wandb]" if config.tracking.use_wandb else "[]",
    }
    for text in rl.overrides:
        if text.replace("agent.init_args.", "agent.").startswith(RESERVED_KEYS):
            raise UserError(f"rl_training.overrides: '{text}' is set by the pipeline itself; leave it out.")
    train = resolve_train(
        [*(f"{key}={value}" for key, value in values.items()), *rl.overrides], model_defaults=False
    ).config
    names = rl.environments if rl.environments is not None else environments(config)
    train.agent.environment, train.agent.template = "mix", config.model.template
    train.agent.environment_args = {
        "environments": {name: environment_options(config, name) for name in names},
        **({"shares": dict(rl.shares)} if rl.shares else {}),
        **({"shaping": rl.reward_function} if rl.reward_function else {}),
    }
    model = train.actor_rollout_ref.model
    model.path = config.model.path if config.training.use_lora else model_path(config, "sft")
    model.lora_adapter_path = model_path(config, "sft") if config.training.use_lora else None
    # The W&B project is a folder of the run; without W&B the run is beside the other stages.
    root, project = (out, config.tracking.wandb_project) if config.tracking.use_wandb else (out.parent, out.name)
    train.trainer.default_local_dir, train.trainer.project_name = str(root), project
    train.trainer.experiment_name = "rl"
    return train


def _estimator_keys(rl: RLTrainingConfig) -> dict[str, Any]:
    """What the advantage estimator reads; `rl_training.overrides` may choose another than gae."""
    keys = {
        "algorithm.gamma": rl.gamma,
        "algorithm.lam": rl.gae_lambda,
        "algorithm.turn_rewards": "true",  # credited at its own step, not at the end of the episode
    }
    prefix = "algorithm.adv_estimator="
    estimator = next((text[len(prefix) :] for text in reversed(rl.overrides) if text.startswith(prefix)), "gae")
    return {key: value for key, value in keys.items() if estimator in READ_BY_ESTIMATORS[key]}


def check_continuation(config: PipelineConfig, started: Callable[[str], bool]) -> None:
    """Refuse a folder that holds another pipeline; write pipeline.yaml.

    Keys may change until the first stage that reads them has `started`.
    """
    stored = folder(config, "pipeline.yaml")
    may_change = tuple(keys for keys, stage in FIRST_READER.items() if not started(stage))
    if stored.is_file():
        before, now = OmegaConf.load(stored), OmegaConf.structured(config)
        defaults = OmegaConf.structured(PipelineConfig)
        for key in schema_keys(PipelineConfig):
            new = OmegaConf.select(now, key)
            old = OmegaConf.select(before, key, default=OmegaConf.select(defaults, key))  # the key may be new
            if old != new and not key.startswith(may_change):
                raise UserError(
                    f"'{config.output_dir}' holds a pipeline with {key}={old}, not {new}; choose another output_dir."
                )
    write_atomic(stored, to_yaml(config).encode())


def check_tasks(config: PipelineConfig) -> None:
    """Every environment must have the tasks that the stages will need: an error now instead of hours later. The data
    set of a hub id is fetched."""
    if config.data.affine.dataset is not None:
        fetch_dataset(config.data.affine.dataset, config.data.affine.buffer_size)
    requirements = [(name, "train", count, config.seed + 1) for name, count in demonstrations(config).items()]
    requirements += [
        (name, "test", config.evaluation.num_eval_samples, config.seed) for name in evaluated_environments(config)
    ]
    for name, split, count, seed in requirements:
        registry.environment_class(name)(**environment_options(config, name)).tasks(split, count, seed)
    train = rl_config(config)
    agent = train.agent
    mix = MixEnvironment(**agent.environment_args, reward=agent.reward_name, format=reply_format(train))
    training_tasks(mix, train)


def check_run(config: PipelineConfig) -> list[str]:
    """What --dry-run checks besides the keys; the sentences about what is not on this machine."""
    dataset, warnings = config.data.affine.dataset, check_supervised_model(sft_config(config))
    if dataset is not None:
        warnings += missing_files("data.affine.dataset", str(local_path(dataset)))
    for name in environments(config):
        make, _ = registry.environment_maker(name, "hf", environment_options(config, name))
        warnings += sentence_of(make)
    return warnings


def summarize(config: PipelineConfig) -> list[str]:
    """Numbers derived from the configuration, for --dry-run."""
    counts, rl = demonstrations(config), config.rl_training
    updates = math.ceil(sum(counts.values()) * (1 - config.data.val_split)) * config.training.num_epochs
    batch = config.training.batch_size * config.training.gradient_accumulation_steps
    return [
        "demonstrations: " + ", ".join(f"{name} {count}" for name, count in counts.items()),
        f"SFT: about {math.ceil(updates / batch)} updates of {batch} episodes",
        f"RL: {rl.num_rollouts} steps of {rl.rollout_batch_size} tasks × {rl.num_chains} attempts, "
        f"{rl.ppo_epochs} passes over each",
        f"evaluation: {len(evaluated_environments(config))} environments × {config.evaluation.num_eval_samples} tasks, "
        "three times",
    ]
