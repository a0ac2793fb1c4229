"""Rollouts during updates: how old a batch is, that nothing else changes, and that both run at the same time."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from practicum.agent import Agent
from practicum.config.resolve import resolve_train
from practicum.engines.base import Sampling
from practicum.environment import Action, Observation, Step
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.models import loader, lora
from practicum.task import Task
from practicum.training.learner import OptimizerSettings
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.rollout_source import OnEpisode, OnlineSource
from practicum.training.settings import GroupFilter, RLSettings
from practicum.training.trainable_policy import TrainablePolicy, frozen_copy
from practicum.trajectory import Trajectory
from tests.training.settings import rl_settings

STEPS = 4
AGENT = Agent(max_turns=2, sampling=Sampling(max_tokens=10, stop=("e",)))
SETTINGS = rl_settings(
    total_training_steps=STEPS, train_batch_size=2, num_chains=3, lr=1e-3, lr_warmup_steps=0, overlap=True
)


class Short(MathEnvironment):
    """Pays for short answers."""

    async def step(self, action: Action) -> Step:
        return Step(reward=1.0 / (1 + len(action.content)), terminated=True)

    async def truncate(self) -> Step:
        return Step(reward=-0.1, truncated=True)


def make(settings: RLSettings = SETTINGS, make_environment: Callable[[], MathEnvironment] = Short) -> RLTrainer:
    policy = TrainablePolicy(loader.load_tiny(0), separate_engine_weights=settings.overlap)
    source = OnlineSource(policy, Short().tasks("train", 8), make_environment, AGENT, settings)
    return RLTrainer(policy, source, settings)


def weights(trainer: RLTrainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.policy.loaded.model.state_dict().items()}


async def run(trainer: RLTrainer, steps: range) -> list[tuple[dict[str, float], list[Trajectory]]]:
    return [await trainer.step(number) for number in steps]


class OneStepAhead(OnlineSource):
    """Rolls out the batch of the next step before it gives that of this one, in the same thread."""

    coming: RolloutBatch | None = None

    async def collect(self, step: int, on_episode: OnEpisode | None = None) -> RolloutBatch:
        await self.policy.refresh()
        batch = self.coming or await super().collect(step, on_episode)
        self.coming = await super().collect(step + 1, on_episode) if step + 1 < STEPS else None
        return batch


def make_sequential(settings: RLSettings) -> RLTrainer:
    """The same computation as an overlapped run, one thing after another."""
    policy = TrainablePolicy(loader.load_tiny(0), separate_engine_weights=True)
    source = OneStepAhead(policy, Short().tasks("train", 8), Short, AGENT, settings)
    return RLTrainer(policy, source, replace(settings, overlap=False, mismatch_limit=9.0))


def plain(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith(("timing/", "staleness/versions"))}


async def closed(trainer: RLTrainer, work: Callable[[], object]) -> object:
    try:
        return await work()  # type: ignore[misc]
    finally:
        await trainer.policy.close()


CASES = {
    "grpo": SETTINGS,
    "corrected": replace(SETTINGS, tis_imp_ratio_cap=2.0),
    "greedy": replace(SETTINGS, adv_estimator="remax"),
    "filtered": replace(SETTINGS, filter_groups=GroupFilter(True, 2), ppo_epochs=2, ppo_mini_batch_size=1),
}


@pytest.mark.parametrize("case", CASES)
def test_an_overlapped_run_equals_a_sequential_one(case: str) -> None:
    first_trainer, second_trainer = make(CASES[case]), make_sequential(CASES[case])
    overlapped = asyncio.run(closed(first_trainer, lambda: run(first_trainer, range(STEPS))))
    sequential = asyncio.run(closed(second_trainer, lambda: run(second_trainer, range(STEPS))))
    for (first, _), (second, _) in zip(overlapped, sequential, strict=True):  # type: ignore[call-overload]
        # An overlapped run calls the learner's distance from the policy that sampled its staleness.
        renamed = {name.replace("staleness/", "mismatch/"): value for name, value in plain(first).items()}
        assert renamed == plain(second)
    actual, expected = weights(first_trainer), weights(second_trainer)
    assert all(torch.equal(actual[name], expected[name]) for name in actual)
    assert any(not torch.equal(actual[name], value) for name, value in weights(make()).items())


def test_a_batch_is_one_version_old_from_the_second_step_on() -> None:
    trainer = make()
    result = asyncio.run(closed(trainer, lambda: run(trainer, range(STEPS))))
    versions = [{turn.policy_version for episode in episodes for turn in episode.turns} for _, episodes in result]  # type: ignore[attr-defined]
    assert versions == [{0}, {0}, {1}, {2}]
    metrics = [metrics for metrics, _ in result]  # type: ignore[attr-defined]
    assert [values["staleness/versions/mean"] for values in metrics] == [0.0, 1.0, 1.0, 1.0]
    # The engine is what it says it is, and the learner has moved on from it.
    assert all(values["mismatch/logprob/max"] < 1e-4 for values in metrics)
    assert metrics[0]["staleness/logprob/mean"] < 1e-4
    assert all(values["staleness/logprob/mean"] > 1e-3 for values in metrics[1:])


def test_an_engine_that_runs_other_weights_stops_the_run() -> None:
    class OtherWeights(OnlineSource):
        """Changes the engine's weights after the rollout, so that those that sampled are others."""

        async def collect(self, step: int, on_episode: OnEpisode | None = None) -> RolloutBatch:
            batch = await super().collect(step, on_episode)
            decoder = self.policy.engine_decoder
            assert decoder is not None
            with torch.no_grad():
                decoder.final_norm.mul_(1.5)
            return batch

    settings = replace(SETTINGS, mismatch_limit=0.01)
    policy = TrainablePolicy(loader.load_tiny(0), separate_engine_weights=True)
    trainer = RLTrainer(policy, OtherWeights(policy, Short().tasks("train", 8), Short, AGENT, settings), settings)
    with pytest.raises(UserError, match="engine and learner disagree"):
        asyncio.run(closed(trainer, lambda: run(trainer, range(1))))


def test_rollout_and_update_run_at_once() -> None:
    """Worlds of the second batch wait until the learner has begun: one after the other would wait for ever."""
    learning = threading.Event()
    started: list[str] = []
    waited: list[bool] = []

    class Waiting(Short):
        async def reset(self, task: Task, seed: int) -> Observation:
            started.append(task.id)
            self.second = len(started) > SETTINGS.train_batch_size * SETTINGS.num_chains
            return await super().reset(task, seed)

        async def step(self, action: Action) -> Step:
            if self.second:
                waited.append(await asyncio.to_thread(learning.wait, 60))
            return await super().step(action)

        async def truncate(self) -> Step:
            await self.step(Action())
            return await super().truncate()

    trainer = make(replace(SETTINGS, total_training_steps=2), Waiting)
    trainer.on_micro_batch = learning.set
    asyncio.run(closed(trainer, lambda: run(trainer, range(1))))
    assert len(waited) == 6
    assert all(waited)


def test_a_failed_update_cancels_the_rollout() -> None:
    trainer = make()

    def fail() -> None:
        raise FloatingPointError("the loss is nan")

    trainer.on_micro_batch = fail

    async def go() -> None:
        with pytest.raises(FloatingPointError, match="the loss is nan"):
            await trainer.step(0)
        assert len(asyncio.all_tasks()) == 1  # nobody is left rolling out

    asyncio.run(closed(trainer, go))
    assert "ahead" not in trainer.state()["practice"]


def test_the_next_batch_is_restored_from_the_state() -> None:
    """Through JSON and back, the rest of the run is the same to the bit."""
    first_trainer, second_trainer = make(), make()

    async def broken() -> None:
        await run(first_trainer, range(2))
        state = json.loads(json.dumps(first_trainer.state(), allow_nan=False, sort_keys=True))
        second_trainer.policy.loaded.model.load_state_dict(first_trainer.policy.loaded.model.state_dict())
        moments = copy.deepcopy(first_trainer.policy.learner.optimizer.state_dict())  # or both would step the same ones
        second_trainer.policy.learner.optimizer.load_state_dict(moments)
        second_trainer.restore(state)
        for trainer in (first_trainer, second_trainer):
            trainer.policy.set_version(trainer.policy.version)
        first, second = await run(first_trainer, range(2, STEPS)), await run(second_trainer, range(2, STEPS))
        assert [list(plain(metrics).items()) for metrics, _ in first] == [
            list(plain(metrics).items()) for metrics, _ in second
        ]  # in the same order too
        await first_trainer.policy.close()

    asyncio.run(closed(second_trainer, broken))
    actual, expected = weights(first_trainer), weights(second_trainer)
    assert all(torch.equal(actual[name], expected[name]) for name in actual)
    assert "ahead" not in first_trainer.state()["practice"]  # after the last step there is nothing to come


def test_without_overlap_the_state_has_no_batch() -> None:
    trainer = make(replace(SETTINGS, overlap=False))
    asyncio.run(closed(trainer, lambda: run(trainer, range(1))))
    assert sorted(trainer.state()["practice"]) == ["clip_scale", "kl_coefficient", "lr_scale", "stream", "version"]


def test_overlap_needs_separate_engine_weights() -> None:
    policy = TrainablePolicy(loader.load_tiny(0))
    source = OnlineSource(policy, Short().tasks("train", 2), Short, AGENT, SETTINGS)
    with pytest.raises(ValueError, match="weights of its own"):
        RLTrainer(policy, source, SETTINGS)
    with pytest.raises(UserError, match="trainer.overlap does not go with --from-trajectories"):
        resolve_train(["trainer.overlap=true", "data.from_trajectories=x"])


def test_only_trained_weights_are_copied() -> None:
    adapted = lora.add_adapter(loader.load_tiny(0), lora.LoRASettings(4))
    copied = frozen_copy(adapted.model)
    for (name, expected), actual in zip(adapted.model.named_parameters(), copied.parameters(), strict=True):
        assert torch.equal(expected, actual)
        assert (expected.data_ptr() == actual.data_ptr()) == ("lora_" not in name), name
        assert not actual.requires_grad
    policy = TrainablePolicy(adapted, separate_engine_weights=True)
    policy.reset_optimizer(OptimizerSettings())
    with torch.no_grad():
        for weight in adapted.model.parameters():
            if weight.requires_grad:
                weight.add_(1.0)
    assert policy.engine_decoder is not None
    before = [weight.clone() for weight in policy.engine_decoder.model.parameters()]
    asyncio.run(policy.refresh())
    pairs = list(zip(policy.engine_decoder.model.parameters(), adapted.model.parameters(), before, strict=True))
    assert all(torch.equal(actual, expected) for actual, expected, _ in pairs)
    assert any(not torch.equal(actual, old) for actual, _, old in pairs)
