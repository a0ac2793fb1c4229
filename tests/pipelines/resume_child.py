"""One leg of a run, in a process of its own that may kill itself at a chosen moment."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from practicum.config.train import resolve
from practicum.data.episode_format import encode_episode
from practicum.environment import Action, Step
from practicum.environments.math import MathEnvironment
from practicum.training import build, checkpoint
from practicum.trajectory import Trajectory

JITTER = random.Random()  # deliberately unseeded: real tools are not on time


class Jittery(MathEnvironment):
    """Pays for short answers, slowly and unevenly."""

    async def step(self, action: Action) -> Step:
        await asyncio.to_thread(time.sleep, JITTER.random() * 0.01)
        return Step(reward=1.0 / (1 + len(action.content)), terminated=True)

    async def truncate(self) -> Step:
        await asyncio.sleep(JITTER.random() * 0.01)
        return Step(reward=-0.1, truncated=True)


def countdown(moment: int) -> Callable[..., None]:
    """Kills the process, as the kernel would, the `moment`-th time it is called."""
    left = moment

    def call(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return call


def leg(folder: str, overrides: list[str], kill: tuple[str, int] | None) -> None:
    """Go on from wherever the run in `folder` stands; `kill` is (episode | tick | checkpoint, how many of them)."""
    kind, moment = kill or ("", 0)
    hook = countdown(moment)
    last: list[str] = []

    def finished(episode: Trajectory) -> None:
        last.append(hashlib.sha256(encode_episode(episode)).hexdigest())
        if kind == "episode":
            hook()

    if kind == "checkpoint":
        sync = checkpoint._sync

        def dying(path: Path) -> None:
            hook()
            sync(path)

        checkpoint._sync = dying
    config = resolve([*overrides, f"trainer.default_local_dir={folder}"])
    run = build.build_run(
        config,
        on_step=lambda step, values: last.clear() if step < run.settings.steps else None,
        on_episode=finished,
        on_micro_batch=hook if kind == "tick" else None,
        say=lambda text: None,
    )
    # A model that nobody taught never ends a reply by itself: a letter does it here.
    source = run.trainer.source
    source.agent = replace(source.agent, sampling=replace(source.agent.sampling, stop=("e",)))

    async def go() -> None:
        await run.train()
        await run.policy.close()

    asyncio.run(go())
    Path(folder, "last_episodes.txt").write_text("\n".join(sorted(last)))
