"""Short training runs for tests of learner ranks; as a program it is one rank: `rank_runs.py PLAN.json`.

A plan is a list of runs, each the arguments of `train_rl`, `train_sft` or `train_dpo`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from practicum.config.dpo import DPOTrainingConfig
from practicum.evaluation.panel import Panel
from practicum.models import loader, lora
from practicum.training import ranks
from practicum.training.build_supervised import dpo_settings
from practicum.training.dpo import DPOTrainer, Pair
from practicum.training.follower_rank import run_follower
from practicum.training.micro_batches import MicroBatchLimits, Sample
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import OnlineSource
from practicum.training.run import Run, RunMonitor
from practicum.training.settings import RunSettings
from practicum.training.sft import SFTTrainer
from practicum.training.trainable_policy import ShardingSettings, TrainablePolicy
from practicum.training.trainer import Trainer, Validation, panel_validation
from tests.training.settings import rl_settings, sft_settings
from tests.training.test_run import AGENT, ByLength


def train(folder: Path, trainer: Trainer, settings: RunSettings) -> None:
    """Train as the first rank, or follow it."""

    async def run_to_end() -> None:
        try:
            if ranks.own_rank() > 0:
                await run_follower(trainer)
                return
            monitor = RunMonitor(folder, trainer, say=str) if isinstance(trainer, RLTrainer) else None
            run = Run(folder, trainer, settings, monitor, say=str)
            run.resume()
            await run.train()
        finally:
            await trainer.policy.close()

    asyncio.run(run_to_end())


class Validated(RLTrainer):
    """Validates on three tasks."""

    async def validate(self) -> Validation | None:
        panel = Panel(tuple(ByLength().tasks("val", 3)), 0)
        result, _ = await self.policy.evaluate("val", panel, ByLength, AGENT)
        return panel_validation(result)


def make_policy(
    sharded: bool, lora_rank: int = 0, has_engine: bool = False, dtype: torch.dtype = torch.float32
) -> TrainablePolicy:
    """The tiny model, divided among the ranks where there are several and `sharded` says so."""
    loaded = loader.load_tiny(0)
    loaded.model.to(dtype)
    if lora_rank:
        loaded = lora.add_adapter(
            loaded, lora.LoRASettings(lora_rank, 2.0 * lora_rank, 0.0, ("q_proj", "down_proj")), 0
        )
    sharding = ShardingSettings(has_engine) if sharded and ranks.num_ranks() > 1 else None
    # Without an engine: few tokens per micro-batch, so that the ranks have different numbers of them.
    return TrainablePolicy(loaded, limits=None if has_engine else MicroBatchLimits(16), sharding=sharding)


def train_rl(
    folder: str,
    steps: int,
    total: int,
    estimator: str,
    use_kl_in_reward: bool = False,
    sharded: bool = False,
    lora_rank: int = 0,
) -> None:
    rl = rl_settings(
        total_training_steps=total, train_batch_size=3, num_chains=2, lr=1e-3, lr_warmup_steps=0,
        adv_estimator=estimator, use_kl_in_reward=use_kl_in_reward,
    )  # fmt: skip
    policy = make_policy(sharded, lora_rank, has_engine=True)
    source = OnlineSource(policy, ByLength().tasks("train", 3 * total), ByLength, AGENT, rl)
    settings = RunSettings(steps, save_freq=2, test_freq=2, val_before_train=False)
    train(Path(folder), Validated(policy, source, rl), settings)


def make_samples() -> list[Sample]:
    """An odd number of samples, of different lengths."""
    rng = np.random.default_rng(0)
    samples = []
    for length in (5, 9, 14, 30, 7):
        zeros, mask = np.zeros(length, dtype=np.float32), np.arange(length) >= 3
        ids = tuple(rng.integers(10, 200, length).tolist())
        samples.append(Sample(ids, mask, mask.astype(np.float32), zeros, zeros))
    return samples


def train_sft(folder: str, steps: int, total: int, sharded: bool = False, dtype: str = "float32") -> None:
    policy, samples = make_policy(sharded, dtype=getattr(torch, dtype)), make_samples()
    policy.decoder.checkpointing = sharded  # computed again for the gradient: the same numbers
    sft = sft_settings(num_epochs=total, batch_size=len(samples), warmup_steps=0)
    trainer = SFTTrainer(policy, samples, sft, eval_samples=samples[:3])
    settings = RunSettings(
        steps, save_freq=2, test_freq=2, val_before_train=False, best_metric="eval/loss", early_stopping_patience=None
    )
    train(Path(folder), trainer, settings)


def train_dpo(folder: str, steps: int, total: int, sharded: bool = False) -> None:
    policy, samples = make_policy(sharded), make_samples()
    pairs = [Pair(chosen, rejected) for chosen, rejected in itertools.pairwise(samples[:4])]
    trainer = DPOTrainer(policy, pairs, dpo_settings(DPOTrainingConfig(num_epochs=total, batch_size=len(pairs))))
    train(Path(folder), trainer, RunSettings(steps, save_freq=2, val_before_train=False, early_stopping_patience=None))


KINDS: dict[str, Callable[..., None]] = {"rl": train_rl, "sft": train_sft, "dpo": train_dpo}


def carry_out(plan: list[dict[str, Any]]) -> None:
    for run in plan:
        KINDS[run.pop("kind")](**run)


if __name__ == "__main__":
    with ranks.joined("cpu"):
        carry_out(json.loads(Path(sys.argv[1]).read_text()))
