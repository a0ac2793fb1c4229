"""The same seed twice: the same weights, metrics and episodes, byte for byte, with tools of uneven speed."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import torch

from practicum.agent import Agent
from practicum.data.store import encode_episode
from practicum.engines.base import Sampling
from practicum.environment import Action, Step
from practicum.environments.math import MathEnvironment
from practicum.models import loader
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import OnlineSource
from practicum.training.trainable_policy import TrainablePolicy
from tests.training.settings import rl_settings

SHORTNESS = f"{Path(__file__).with_name('rewards.py')}:shortness"
JITTER = random.Random()  # deliberately unseeded: real tools are not on time


class Jittery(MathEnvironment):
    async def step(self, action: Action) -> Step:
        await asyncio.to_thread(time.sleep, JITTER.random() * 0.02)
        return await super().step(action)

    async def truncate(self) -> Step:
        await asyncio.sleep(JITTER.random() * 0.02)
        return await super().truncate()


def run_once() -> tuple[dict[str, torch.Tensor], list[dict[str, float]], list[bytes]]:
    async def run() -> tuple[dict[str, torch.Tensor], list[dict[str, float]], list[bytes]]:
        policy = TrainablePolicy(loader.load_tiny(0), max_batch=16)
        # A fresh model never earns a reward: pay for short replies, ended by a letter, to learn from.
        make = lambda: Jittery(reward=SHORTNESS)  # noqa: E731
        agent = Agent(max_turns=2, sampling=Sampling(max_tokens=10, stop=("e",)))
        settings = rl_settings(total_training_steps=3, train_batch_size=4, num_chains=4, lr=1e-3, lr_warmup_steps=0)
        trainer = RLTrainer(policy, OnlineSource(policy, make().tasks("train", 12), make, agent, settings), settings)
        metrics, episodes = [], []
        for step in range(3):
            values, rolled = await trainer.step(step)
            metrics.append({k: v for k, v in values.items() if not k.startswith("timing/")})
            episodes += [encode_episode(episode) for episode in rolled]
        await policy.close()
        return dict(policy.loaded.model.state_dict()), metrics, episodes

    return asyncio.run(run())


def test_two_runs_of_one_seed_are_equal() -> None:
    first, second = run_once(), run_once()
    assert first[2] == second[2]
    assert first[1] == second[1]
    assert any(m["actor/grad_norm"] > 0 for m in first[1] if "actor/grad_norm" in m)
    assert all(torch.equal(value, second[0][name]) for name, value in first[0].items())
