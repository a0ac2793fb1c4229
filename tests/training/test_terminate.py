"""SIGTERM ends a training within seconds, and at most the unfinished step is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from practicum.environment import Action, Step
from practicum.evaluation.result import EvalResult
from practicum.models import loader
from practicum.training.async_source import AsyncSource
from practicum.training.checkpoint import Checkpoints
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import OnlineSource
from practicum.training.run import Run
from practicum.training.settings import RunSettings
from practicum.training.trainable_policy import TrainablePolicy
from tests.training.test_run import AGENT, RL, ByLength, go, make_run, validations

SMALL = replace(RL, train_batch_size=1, num_chains=2, total_training_steps=3)


class Stuck(ByLength):
    """Its fifth step takes longer than anybody waits: SIGTERM comes while it waits."""

    num_steps = 0

    async def step(self, action: Action) -> Step:
        Stuck.num_steps += 1
        if Stuck.num_steps == 5:  # two chains in each training step: this is the third one
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(100)
        return await super().step(action)


def test_in_a_rollout(tmp_path: Path) -> None:
    settings = RunSettings(3, save_freq=3, val_before_train=False)
    go(make_run(tmp_path / "whole", settings, SMALL))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        go(make_run(tmp_path / "cut", settings, SMALL, Stuck))
    assert time.monotonic() - started < 60
    assert Checkpoints(tmp_path / "cut").steps() == [2]
    again = make_run(tmp_path / "cut", settings, SMALL)
    again.resume()
    go(again)
    for name in ("metrics.jsonl", "health.jsonl", "global_step_3/manifest.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_in_a_validation(tmp_path: Path) -> None:
    """Its step is not lost: the resumed run begins with the validation."""
    settings, rates = RunSettings(3, save_freq=3, test_freq=1), (0.5, 0.4, 0.6, 0.7)
    go(make_run(tmp_path / "whole", settings, SMALL, evaluate=validations(*rates)))
    first, calls = validations(*rates[:2]), 0

    async def stuck() -> EvalResult:
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(100)
        return await first()

    with pytest.raises(KeyboardInterrupt):
        go(make_run(tmp_path / "cut", settings, SMALL, evaluate=stuck))
    again = make_run(tmp_path / "cut", settings, SMALL, evaluate=validations(*rates[2:]))
    again.resume()
    go(again)
    for name in ("metrics.jsonl", "health.jsonl", "global_step_3/manifest.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_in_the_first_validation_there_is_nothing_to_save(tmp_path: Path) -> None:
    async def stuck() -> EvalResult:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(100)
        raise AssertionError("it was cancelled")

    with pytest.raises(KeyboardInterrupt):
        go(make_run(tmp_path, RunSettings(3, save_freq=3, test_freq=1), SMALL, evaluate=stuck))
    assert Checkpoints(tmp_path).steps() == []


class StuckInOneTask(ByLength):
    """The second chain of one task takes longer than anybody waits; then comes the signal."""

    task, signal_number, sent = 0, signal.SIGINT, False

    async def step(self, action: Action) -> Step:
        trajectory = self.trajectory_so_far()
        if int(trajectory.task.id.split("-")[-1]) == self.task and trajectory.attempt == 1:
            if not StuckInOneTask.sent:
                StuckInOneTask.sent = True
                asyncio.get_running_loop().call_later(0.5, os.kill, os.getpid(), self.signal_number)
            await asyncio.sleep(100)
        return await super().step(action)


def make_asynchronous(folder: Path, environment: type[ByLength]) -> tuple[Run, list[tuple[str, int]]]:
    """A run with batches of two steps under way, and the episodes that it plays."""
    settings, played = replace(SMALL, max_staleness=1), list[tuple[str, int]]()
    policy = TrainablePolicy(loader.load_tiny(0), separate_engine_weights=True)
    online = OnlineSource(policy, environment().tasks("train", 3), environment, AGENT, settings)
    trainer = RLTrainer(policy, AsyncSource(online), settings)
    trainer.on_episode = lambda episode: played.append((episode.group, episode.attempt))
    return Run(folder, trainer, RunSettings(3, save_freq=3, val_before_train=False)), played


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stuck", [0, 1])
def test_rollouts_beside_the_training_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: int, signal_number: signal.Signals
) -> None:
    """Nothing waits for the slowest episode; those that have ended are trained on by the resumed run, once."""
    monkeypatch.setattr(StuckInOneTask, "task", stuck)
    monkeypatch.setattr(StuckInOneTask, "signal_number", signal_number)
    monkeypatch.setattr(StuckInOneTask, "sent", False)
    started = time.monotonic()
    run, played = make_asynchronous(tmp_path, StuckInOneTask)
    with pytest.raises(KeyboardInterrupt):
        go(run)
    assert time.monotonic() - started < 60
    assert Checkpoints(tmp_path).steps() == [stuck]
    again, rest_trainer = make_asynchronous(tmp_path, ByLength)
    again.resume()
    go(again)
    assert again.state.step == 3
    assert played
    tasks = ByLength().tasks("train", 3)
    assert sorted(played + rest_trainer) == [(f"step-{i}/{task.id}", k) for i, task in enumerate(tasks) for k in (0, 1)]
