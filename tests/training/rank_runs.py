"""Short training runs for tests of learner ranks; as a program it is one rank: `rank_runs.py PLAN.json`.

A plan is a list of runs, each the arguments of `train_rl` or `train_sft`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from practicum.evaluation.panel import Panel
from practicum.models import loader
from practicum.training import ranks
from practicum.training.follower import run_follower
from practicum.training.micro_batches import Sample
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import OnlineSource
from practicum.training.run import Run, RunMonitor
from practicum.training.settings import RunSettings
from practicum.training.sft import SFTTrainer
from practicum.training.trainable_policy import TrainablePolicy
from practicum.training.trainer import Trainer, Validation, panel_validation
from tests.training.settings import rl_settings, sft_settings
from tests.training.test_run import AGENT, ByLength


def train(folder: Path, trainer: Trainer, settings: RunSettings) -> None:
    """Train as the first rank, or follow it."""

    async def whole() -> None:
        try:
            if ranks.index() > 0:
                await run_follower(trainer)
                return
            monitor = RunMonitor(folder, trainer, say=str) if isinstance(trainer, RLTrainer) else None
            run = Run(folder, trainer, settings, monitor, say=str)
            run.resume()
            await run.train()
        finally:
            await trainer.policy.close()

    asyncio.run(whole())


class Validated(RLTrainer):
    """Validates on three tasks."""

    async def validate(self) -> Validation | None:
        panel = Panel(tuple(ByLength().tasks("val", 3)), 0)
        result, _ = await self.policy.evaluate("val", panel, ByLength, AGENT)
        return panel_validation(result)


def train_rl(folder: str, steps: int, total: int, estimator: str, use_kl_in_reward: bool = False) -> None:
    rl = rl_settings(
        total_training_steps=total, train_batch_size=3, num_chains=2, lr=1e-3, lr_warmup_steps=0,
        adv_estimator=estimator, use_kl_in_reward=use_kl_in_reward,
    )  # fmt: skip
    policy = TrainablePolicy(loader.load_tiny(0))
    source = OnlineSource(policy, ByLength().tasks("train", 3 * total), ByLength, AGENT, rl)
    settings = RunSettings(steps, save_freq=2, test_freq=2, val_before_train=False)
    train(Path(folder), Validated(policy, source, rl), settings)


def train_sft(folder: str, steps: int, total: int) -> None:
    policy = TrainablePolicy(loader.load_tiny(0))
    rng = np.random.default_rng(0)
    samples = []
    for length in (5, 9, 14, 30, 7):  # an odd number, of different lengths
        zeros, mask = np.zeros(length, dtype=np.float32), np.arange(length) >= 3
        ids = tuple(rng.integers(10, 200, length).tolist())
        samples.append(Sample(ids, mask, mask.astype(np.float32), zeros, zeros))
    sft = sft_settings(num_epochs=total, batch_size=len(samples), warmup_steps=0)
    trainer = SFTTrainer(policy, samples, sft, eval_samples=samples[:3])
    settings = RunSettings(
        steps, save_freq=2, test_freq=2, val_before_train=False, best_metric="eval/loss", early_stopping_patience=None
    )
    train(Path(folder), trainer, settings)


def carry_out(plan: list[dict[str, Any]]) -> None:
    for run in plan:
        function = train_sft if run.pop("kind") == "sft" else train_rl
        function(**run)


if __name__ == "__main__":
    with ranks.joined("cpu"):
        carry_out(json.loads(Path(sys.argv[1]).read_text()))
