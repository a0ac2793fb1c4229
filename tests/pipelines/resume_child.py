"""A training run that ends at a chosen moment: the process is killed, or an exception is raised."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from practicum.config.resolve import resolve_train
from practicum.data.store import encode_episode
from practicum.environment import Action, Step
from practicum.environments.math import MathEnvironment
from practicum.training import build
from practicum.training.rl_trainer import RLTrainer
from practicum.trajectory import Trajectory

NUM_THREADS = torch.get_num_threads()
JITTER = random.Random()  # deliberately unseeded: real tools are not on time


class Jittery(MathEnvironment):
    """Pays for short answers, slowly and unevenly."""

    async def step(self, action: Action) -> Step:
        await asyncio.to_thread(time.sleep, JITTER.random() * 0.01)
        return Step(reward=1.0 / (1 + len(action.content)), terminated=True)

    async def truncate(self) -> Step:
        await asyncio.sleep(JITTER.random() * 0.01)
        return Step(reward=-0.1, truncated=True)


def unlike_the_others(group: Sequence[Trajectory], rewards: Sequence[float]) -> list[float]:
    """A group reward: 0.1 for a reply that no other episode of the group gave."""
    replies = [episode.turns[-1].reply for episode in group]
    return [reward + 0.1 * (replies.count(reply) == 1) for reward, reply in zip(rewards, replies, strict=True)]


class PowerCut(BaseException):
    """The end of a run that is cut short inside the test's own process."""


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def cut_power() -> None:
    raise PowerCut


def countdown(moment: int, end: Callable[[], None]) -> Callable[..., None]:
    """A function that calls `end` the `moment`-th time it is called."""
    num_left = moment

    def call(*_: Any) -> None:
        nonlocal num_left
        num_left -= 1
        if num_left == 0:
            end()

    return call


def train_until(
    folder: str, overrides: list[str], moment: tuple[str, int] | None = None, end: Callable[[], None] = kill_process
) -> None:
    """Continue the run in `folder` to its end, or until `end` is called at `moment`.

    A moment is (`episode`, N): after the N-th episode of this process; (`update`, N): in the update of step N;
    (`checkpoint`, N): before the N-th file of a checkpoint is on the disk.
    """
    kind, count = moment or ("", 0)
    torch.set_num_threads(NUM_THREADS)  # a run that was cut short may leave another number
    hook = countdown(count, end)
    last: list[str] = []

    def on_episode(episode: Trajectory) -> None:
        last.append(hashlib.sha256(encode_episode(episode)).hexdigest())
        if kind == "episode":
            hook()

    def on_micro_batch() -> None:
        if kind == "update" and run.state.step + 1 == count:
            end()

    if kind == "checkpoint":
        fsync = os.fsync

        def counted(file: int) -> None:
            if "global_step_" in os.readlink(f"/proc/self/fd/{file}"):
                hook()
            fsync(file)

        os.fsync = counted
    config = resolve_train([*overrides, f"trainer.default_local_dir={folder}", "trainer.experiment_name=run"]).config
    run = build.build_run(
        config,
        on_step=lambda step, values: last.clear() if step < run.settings.total_training_steps else None,
        on_episode=on_episode,
        on_micro_batch=on_micro_batch,
        say=lambda text: None,
    )
    # An untrained model never ends a reply by itself: a letter does it here.
    assert isinstance(run.trainer, RLTrainer)
    source = run.trainer.source
    source.agent = replace(source.agent, sampling=replace(source.agent.sampling, stop=("e",)))

    async def train() -> None:
        try:
            await run.train()
        finally:
            await run.policy.close()

    asyncio.run(train())
    Path(folder, "last_episodes.txt").write_text("\n".join(sorted(last)))
