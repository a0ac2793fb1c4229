"""What `--dry-run` checks: everything that a run would refuse, as far as it can be known without running it.

What is wrong raises UserError. What is only not on this machine (a model, a data file, a GPU, a tracker's package) is
returned as a sentence: the run itself may be meant for another machine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from practicum.chat.renderer import check_template, check_thoughts
from practicum.config.dpo import DPOConfig
from practicum.config.sft import SFTConfig
from practicum.config.train import TrainConfig
from practicum.data.run_folder import resolve_model
from practicum.data.task_file import task_files
from practicum.errors import UserError
from practicum.models import loader
from practicum.training import build, build_supervised
from practicum.training.build_settings import (
    environment_name,
    model_name,
    resolve_device,
    rl_settings,
    run_folder,
    run_settings,
    training_steps,
)
from practicum.training.checkpoint import check_continuation
from practicum.training.monitor.loggers import TRACKERS, check_logger_names, import_package


def check_train(config: TrainConfig) -> list[str]:
    """Check the configuration of `practicum train`; the sentences about what is not on this machine."""
    trainer, model, data = config.trainer, config.actor_rollout_ref.model, config.data
    from_files = data.train_files or data.from_trajectories
    if trainer.total_training_steps is None and not (trainer.total_epochs and from_files):
        training_steps(config)  # says what is missing
    steps = trainer.total_training_steps or 1
    rl_settings(config, steps)
    run_settings(config, steps)
    build.check_sources(config)
    check_thoughts(config.agent.thoughts)
    check_template(config.agent.template)
    check_logger_names(trainer.logger)
    begun = copy.deepcopy(config)
    begun.trainer.experiment_name = run_folder(config).name
    resolve_device(begun)
    check_continuation(begun, run_folder(config))
    warnings = [
        *missing_files("data.train_files", data.train_files),
        *missing_files("data.val_files", data.val_files),
        *missing_files("data.from_trajectories", data.from_trajectories),
        *_missing_model("actor_rollout_ref.model.path", model_name(config)),
        *_missing_model("actor_rollout_ref.model.lora_adapter_path", model.lora_adapter_path, is_adapter=True),
        *_missing_model("critic.model.path", config.critic.model.path),
        *sentence_of(lambda: build.check_machine(config)),
    ]
    build.resolve_policy(config)
    for name in sorted(TRACKERS.intersection(trainer.logger)):
        warnings += sentence_of(lambda name=name: import_package(name))  # type: ignore[misc]
    _check_tasks(config)
    return warnings


def check_supervised_run(config: SFTConfig | DPOConfig) -> list[str]:
    """Check the configuration of `practicum sft` or `dpo`; the sentences about what is not on this machine."""
    no_data = sentence_of(lambda: build_supervised.check_data_source(config))
    if config.data.episodes is not None and no_data:
        raise UserError(no_data[0])  # both are given; with neither, the configuration is still worth printing
    if isinstance(config, DPOConfig):
        build_supervised.dpo_settings(config.training)
    else:
        build_supervised.sft_settings(config.training)
    return [
        *no_data,
        *missing_files("data.episodes", config.data.episodes),
        *missing_files("data.dataset_path", config.data.dataset_path),
        *check_supervised_model(config),
    ]


def check_supervised_model(config: SFTConfig | DPOConfig) -> list[str]:
    """Check the group `model` of supervised training."""
    check_template(config.model.template)
    loader.resolve_device(config.model.device, key="model.device")
    loader.quantisation(config.model.load_in_8bit, config.model.load_in_4bit)
    warnings = [
        *_missing_model("model.path", config.model.path),
        *_missing_model("model.adapter_path", config.model.adapter_path, is_adapter=True),
    ]
    build_supervised.resolve_policy(config)
    return warnings


def _check_tasks(config: TrainConfig) -> None:
    """Make the environment with its tools and rewards, and read the task files that are here."""
    files = {key: path for key in ("train_files", "val_files") if (path := _present(getattr(config.data, key)))}
    data = replace(config.data, train_files=files.get("train_files"), val_files=files.get("val_files"))
    # The environment is found by the names of the files, whether they are here or not.
    agent = replace(config.agent, environment=environment_name(config))
    components = build.make_components(replace(config, data=data, agent=agent))
    for split, key in (("train", "train_files"), ("val", "val_files")):
        if key in files:
            components.environment.tasks(split, 1)


def _present(paths: object) -> object:
    """The path, or list of paths, if all of them are here; else None."""
    return paths if paths and all(path.exists() for path in task_files(paths)) else None


def missing_files(key: str, paths: object) -> list[str]:
    """A sentence for each file or folder that is not on this machine."""
    missing = [path for path in task_files(paths) if not path.exists()] if paths else []
    return [f"{key}: there is no '{path}' on this machine; the run needs it." for path in missing]


def _missing_model(key: str, name: str | None, is_adapter: bool = False) -> list[str]:
    """A sentence for a model that is not on this machine; UserError for one that is no model."""
    if name is None:
        return []
    if Path(name).expanduser().exists() or name in loader.BUILDERS:
        ref = resolve_model(name)
        if is_adapter and ref.adapter is None:
            raise UserError(f"{key}: '{name}' is not an adapter (it has no adapter_config.json).")
        return []
    kind = "adapter" if is_adapter else "model"
    if not is_adapter and loader.is_cached(name):
        return []
    return [f"{key}: {kind} '{name}' is not on this machine; the run needs it."]


def sentence_of(check: Callable[[], object]) -> list[str]:
    """The sentence of a check that fails for want of something on this machine."""
    try:
        check()
    except UserError as error:
        return [str(error)]
    return []
