"""`practicum train KEY=VALUE ...`: reinforcement learning; `recipe=NAME` loads an experiment, `--dry-run` shows it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from practicum.errors import UserError

if TYPE_CHECKING:
    from practicum.config import TrainConfig
    from practicum.environment import Environment
    from practicum.task import Task

GENERATED_TASKS = 100_000


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum train", description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved configuration and what follows from it"
    )
    args = parser.parse_args(argv)

    from practicum import config as configuration

    config = configuration.resolve(args.overrides)
    if args.dry_run:
        print(configuration.show(config), end="")
        print("# derived")
        print("\n".join(f"# {line}" for line in derived(config)))
        return 0
    return asyncio.run(train(config))


def derived(config: TrainConfig) -> list[str]:
    """The numbers that follow from the settings."""
    episodes = config.data.train_batch_size * config.agent.num_chains
    replies = episodes * config.agent.max_turns
    return [
        f"episodes per step: {episodes} ({config.data.train_batch_size} tasks × {config.agent.num_chains} chains)",
        f"sampled tokens per step, at most: {replies * config.agent.max_tokens_per_turn}",
        f"model: {model_name(config)}",
        f"run folder: {run_folder(config)}",
        f"updates: {config.trainer.total_training_steps}, each over the whole step's episodes, "
        f"in pieces of at most {config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu} tokens",
    ]


def model_name(config: TrainConfig) -> str:
    return config.actor_rollout_ref.model.path or config.agent.model_name_or_path


def run_folder(config: TrainConfig) -> Path:
    trainer = config.trainer
    return Path(trainer.default_local_dir) / trainer.project_name / trainer.experiment_name


async def train(config: TrainConfig) -> int:
    from practicum import config as configuration
    from practicum.agent import Agent
    from practicum.engines.base import Sampling
    from practicum.evaluation.panel import Panel
    from practicum.metrics import MetricsFile
    from practicum.models import loader
    from practicum.progress import Progress
    from practicum.store import write_atomic
    from practicum.training.apprentice import Apprentice
    from practicum.training.estimators import EstimatorSettings
    from practicum.training.learner import Objective, OptimizerSettings
    from practicum.training.rl import Practice, RLSettings
    from practicum.workbench import environment_maker

    actor, rollout, trainer = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.trainer
    if rollout.name != "local":
        raise UserError(f"actor_rollout_ref.rollout.name={rollout.name} is not available here; use 'local'.")
    options = dict(config.agent.environment_args)
    for key, value in (("tools", config.agent.tools), ("reward", config.agent.reward_name)):
        if value is not None:
            options[key] = value
    files = {
        split: path for split, path in (("train", config.data.train_files), ("val", config.data.val_files)) if path
    }
    if files:
        options["files"] = files
    folder = run_folder(config)
    if (folder / "metrics.jsonl").exists():
        raise UserError(f"'{folder}' already holds a run; choose another trainer.experiment_name.")
    maker, chosen = environment_maker(config.agent.environment, config.agent.agent_type, options)
    world = maker()
    settings = RLSettings(
        steps=trainer.total_training_steps,
        tasks_per_step=config.data.train_batch_size,
        chains=config.agent.num_chains,
        estimator=config.algorithm.adv_estimator,
        credit=EstimatorSettings(config.algorithm.gamma, config.algorithm.norm_adv_by_std_in_grpo),
        aggregation=actor.loss_agg_mode,
        lr=actor.optim.lr,
        warmup=actor.optim.lr_warmup_steps,
        schedule=actor.optim.warmup_style,
        objective=Objective("pg", actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c, actor.entropy_coeff),
        optimizer=OptimizerSettings(actor.optim.lr, actor.optim.weight_decay, grad_clip=actor.grad_clip),
        seed=trainer.seed,
    )
    sampling = Sampling(rollout.temperature, max_tokens=config.agent.max_tokens_per_turn)
    agent = Agent(format=chosen, max_turns=config.agent.max_turns, sampling=sampling)
    tasks = training_tasks(world, config)
    if config.data.train_files and not config.data.val_files and validates(config):
        raise UserError("Validation needs data.val_files beside data.train_files (or trainer.val_before_train=false).")
    panel = Panel(tuple(world.tasks("val", config.data.val_batch_size)), trainer.seed) if validates(config) else None
    apprentice = Apprentice(
        loader.load(model_name(config)),
        config.agent.template,
        max_batch=rollout.max_num_seqs,
        token_budget=actor.ppo_max_token_len_per_gpu,
    )
    practice = Practice(apprentice, tasks, maker, agent, settings)
    write_atomic(folder / "config.yaml", configuration.show(config).encode())
    metrics = MetricsFile(folder / "metrics.jsonl")
    greedy = Agent(format=chosen, max_turns=config.agent.max_turns,
                   sampling=Sampling(rollout.val_temperature, max_tokens=config.agent.max_tokens_per_turn))  # fmt: skip

    async def validate() -> dict[str, float]:
        assert panel is not None
        result, _ = await apprentice.examine("val", panel, maker, greedy)
        interval = result.interval()
        return {"val/success/mean": result.success_rate, "val/success/low": interval.low,
                "val/success/high": interval.high, "val/n": float(result.count)}  # fmt: skip

    try:
        episodes_per_step = settings.tasks_per_step * settings.chains
        with Progress("train", settings.steps * episodes_per_step, "episodes") as progress:
            if panel is not None and trainer.val_before_train:
                values = await validate()
                metrics.write(0, values)
                progress.note = f"before: val {values['val/success/mean']:.1%}"
            for step in range(settings.steps):
                values, _ = await practice.step(step, on_episode=lambda episode: progress.advance())
                last = step + 1 == settings.steps
                if panel is not None and trainer.test_freq > 0 and ((step + 1) % trainer.test_freq == 0 or last):
                    values |= await validate()
                metrics.write(step + 1, values)
                progress.note = f"step {step + 1}: reward {values.get('reward/mean', float('nan')):.3f}"
                if trainer.save_freq > 0 and (step + 1) % trainer.save_freq == 0 and not last:
                    apprentice.save(folder / f"global_step_{step + 1}")
        apprentice.save(folder / "model")
    finally:
        metrics.close()
        await apprentice.close()
    print(f"{settings.steps} steps; metrics in {folder / 'metrics.jsonl'}, model in {folder / 'model'}")
    return 0


def validates(config: TrainConfig) -> bool:
    return config.trainer.val_before_train or config.trainer.test_freq > 0


def training_tasks(world: Environment, config: TrainConfig) -> Sequence[Task]:
    """A file's tasks, all of them; or as many generated ones as the run will see."""
    if config.data.train_files:
        return world.tasks("train", GENERATED_TASKS)
    wanted = config.data.train_batch_size * config.trainer.total_training_steps
    return world.tasks("train", min(wanted, GENERATED_TASKS), config.trainer.seed)
