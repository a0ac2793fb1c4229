"""What `--dry-run` prints and checks: everything that a run would refuse, as far as it can be known without running it.

What is wrong raises UserError. What is only not on this machine (a model, a data file, a GPU, a tracker's package) is
returned as a sentence, since the run itself may be meant for another machine; so is what the run warns of.
`summarize` says what follows from the keys.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from practicum.chat.renderer import check_template, check_thoughts
from practicum.chat.response_format import read_response_format
from practicum.config.dpo import DPOConfig
from practicum.config.sft import SFTConfig
from practicum.config.train import TrainConfig
from practicum.data.run_folder import resolve_model
from practicum.data.task_file import task_files
from practicum.data.task_overlap import task_content
from practicum.errors import UserError
from practicum.models import loader, quantisation
from practicum.training import build, build_supervised, rollout_engine
from practicum.training.checkpoint import check_continuation
from practicum.training.estimators import ESTIMATORS
from practicum.training.group_reward import find_group_reward
from practicum.training.monitor.health import HealthMonitor
from practicum.training.monitor.loggers import TRACKERS, check_logger_names, import_package
from practicum.training.roles import check_roles
from practicum.training.settings import (
    environment_name,
    external_agent,
    find_device,
    max_micro_batch_tokens,
    max_reply_tokens,
    max_turns,
    model_name,
    resolve_device,
    rl_settings,
    run_folder,
    run_settings,
    training_steps,
)
from practicum.utils.tables import percent


def summarize(config: TrainConfig) -> list[str]:
    """The numbers that follow from the settings; UserError for settings that no run can have."""
    actor, num_tasks, num_chains = (
        config.actor_rollout_ref.actor,
        config.data.train_batch_size,
        config.agent.num_chains,
    )
    mini_batch = actor.ppo_mini_batch_size or num_tasks
    estimator = config.algorithm.adv_estimator
    settings = rl_settings(config, config.trainer.total_training_steps or 1)
    run_settings(config, settings.total_training_steps)
    placement = find_device(config)
    length: object = config.trainer.total_training_steps or f"{config.trainer.total_epochs} epochs of the tasks"
    if config.data.num_train_tasks is not None:
        length = f"{training_steps(config)} ({config.data.num_train_tasks} generated tasks)"
    size = f" = {mini_batch * num_chains} episodes" if config.data.from_trajectories is None else ""
    lines = [
        f"model: {model_name(config)}",
        f"environment: {environment_name(config)}",
        f"device: {placement.describe()}",
        f"run folder: {run_folder(config)}",
        *(_online_lines(config) if config.data.from_trajectories is None else _logged_lines(config)),
        f"updates per step: {actor.ppo_epochs * num_tasks // mini_batch} ({actor.ppo_epochs} epochs × "
        f"{num_tasks // mini_batch} mini-batches of {mini_batch} tasks{size})",
        f"micro-batches: at most {max_micro_batch_tokens(config, placement)} tokens"
        + (f" and {actor.ppo_micro_batch_size_per_gpu} sequences" if actor.ppo_micro_batch_size_per_gpu else "")
        + "; the gradient does not depend on them",
        f"steps: {length}",
        f"loss aggregation: {settings.loss_aggregation}",
        f"reference model: {_reference(config) if settings.needs_reference else 'none'}",
    ]
    if ESTIMATORS[estimator].needs_critic:
        lines.append(f"critic: {config.critic.model.path or 'a two-layer head on the policy'}")
    elif config.critic.model.path:
        lines.append(f"critic.model.path is not used: {estimator} has no critic")
    return lines


def _reference(config: TrainConfig) -> str:
    model = config.actor_rollout_ref.model
    if model.lora_adapter_path or resolve_model(model_name(config)).adapter:
        return "a frozen copy of the adapter at the start, over the same weights"
    return "the model beneath its new adapter" if model.lora_rank else "a frozen copy of the start"


def _online_lines(config: TrainConfig) -> list[str]:
    num_tasks, num_chains = config.data.train_batch_size, config.agent.num_chains
    num_tokens = num_tasks * num_chains * max_turns(config) * max_reply_tokens(config)
    return [
        f"episodes per step: {num_tasks * num_chains} ({num_tasks} tasks × {num_chains} chains)",
        f"sampled tokens per step, at most: {num_tokens}",
    ]


def _logged_lines(config: TrainConfig) -> list[str]:
    """What one step takes from a log."""
    num_tasks, num_chains, actor = (
        config.data.train_batch_size,
        config.agent.num_chains,
        config.actor_rollout_ref.actor,
    )
    log = config.data.from_trajectories
    if config.algorithm.offline.method == "bandit":
        share = percent(config.algorithm.offline.top_percent, digits=0)
        return [
            f"learns from: the states of '{log}', actions of each task's furthest {share} of episodes",
            f"replies per step: {num_tasks * num_chains} ({num_tasks} states × {num_chains} chains)",
        ]
    return [
        f"learns from: the episodes of '{log}'; nothing is rolled out",
        f"logged tasks per step: {num_tasks}, each with all its episodes",
        f"a logged token may become {1 + actor.clip_ratio_high:g} times as likely as it was, or "
        f"{1 - actor.clip_ratio_low:g} times (the floor)",
    ]


def check_train(config: TrainConfig) -> list[str]:
    """Check the configuration of `practicum train`; the sentences of its warnings."""
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
    read_response_format(config.agent.response_format, "agent.response_format")
    external_agent(config)
    check_logger_names(trainer.logger)
    if config.algorithm.group_reward.name is not None:
        find_group_reward(config.algorithm.group_reward.name, config.algorithm.group_reward.weight)
    HealthMonitor(config.health)
    resolved = copy.deepcopy(config)
    resolved.trainer.experiment_name = run_folder(config).name
    resolve_device(resolved)
    shared = _check_tasks(
        resolved
    )  # it sets agent.train_roles, as a run does before it is compared with the one in its folder
    check_continuation(resolved, run_folder(config))
    warnings = [
        *shared,
        *missing_files("data.train_files", data.train_files),
        *missing_files("data.val_files", data.val_files),
        *missing_files("data.from_trajectories", data.from_trajectories),
        *_missing_model("actor_rollout_ref.model.path", model_name(config)),
        *_missing_model("actor_rollout_ref.model.lora_adapter_path", model.lora_adapter_path, is_adapter=True),
        *_missing_model("critic.model.path", config.critic.model.path),
        *sentence_of(lambda: build.check_machine(config)),
    ]
    rollout_engine.resolve_policy(config)
    for name in sorted(TRACKERS.intersection(trainer.logger)):
        warnings += sentence_of(lambda name=name: import_package(name))  # type: ignore[misc]
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
    quantisation.config_of_keys(config.model.load_in_8bit, config.model.load_in_4bit)
    warnings = [
        *_missing_model("model.path", config.model.path),
        *_missing_model("model.adapter_path", config.model.adapter_path, is_adapter=True),
    ]
    build_supervised.resolve_policy(config)
    return warnings


def _check_tasks(config: TrainConfig) -> list[str]:
    """Make the environment with its tools and rewards, check its roles, and read the task files that are here.

    Returns a sentence where validation tasks are training tasks too.
    """
    files = {key: path for key in ("train_files", "val_files") if (path := _present(getattr(config.data, key)))}
    data = replace(config.data, train_files=files.get("train_files"), val_files=files.get("val_files"))
    # The environment is found by the names of the files, whether they are here or not.
    agent = replace(config.agent, environment=environment_name(config))
    components = build.make_components(replace(config, data=data, agent=agent))
    check_roles(config, components.environment)
    for split, key in (("train", "train_files"), ("val", "val_files")):
        if key in files:
            components.environment.tasks(split, 1)
    if len(files) < 2:
        return []
    trained = build.training_tasks(components.environment, config)
    return build.overlap_warnings(config, components.environment, {task_content(task) for task in trained})


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
    """The sentence of a check that fails because something is missing on this machine."""
    try:
        check()
    except UserError as error:
        return [str(error)]
    return []
