"""What follows from a TrainConfig, in sentences: the lines that `practicum train --dry-run` prints below the keys."""

from __future__ import annotations

from practicum.config.train import TrainConfig
from practicum.data.run_folder import resolve_model
from practicum.training.build_settings import (
    environment_name,
    find_device,
    max_micro_batch_tokens,
    max_reply_tokens,
    max_turns,
    model_name,
    rl_settings,
    run_folder,
    run_settings,
)
from practicum.training.estimators import ESTIMATORS


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
    where = find_device(config)
    length = config.trainer.total_training_steps or f"{config.trainer.total_epochs} epochs of"
    size = f" = {mini_batch * num_chains} episodes" if config.data.from_trajectories is None else ""
    lines = [
        f"model: {model_name(config)}",
        f"environment: {environment_name(config)}",
        f"device: {where.describe()}",
        f"run folder: {run_folder(config)}",
        *(_online_lines(config) if config.data.from_trajectories is None else _logged_lines(config)),
        f"updates per step: {actor.ppo_epochs * num_tasks // mini_batch} ({actor.ppo_epochs} epochs × "
        f"{num_tasks // mini_batch} mini-batches of {mini_batch} tasks{size})",
        f"micro-batches: at most {max_micro_batch_tokens(config, where)} tokens"
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
        share = config.algorithm.offline.top_percent
        return [
            f"learns from: the states of '{log}', actions of each task's furthest {share:.0%} of episodes",
            f"replies per step: {num_tasks * num_chains} ({num_tasks} states × {num_chains} chains)",
        ]
    return [
        f"learns from: the episodes of '{log}'; nothing is rolled out",
        f"logged tasks per step: {num_tasks}, each with all its episodes",
        f"a logged token may become {1 + actor.clip_ratio_high:g} times as likely as it was, or "
        f"{1 - actor.clip_ratio_low:g} times (the floor)",
    ]
