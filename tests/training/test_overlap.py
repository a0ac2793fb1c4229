"""Rollout beside training: how old a batch is, that nothing else changes, and that both really run at once."""

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
from practicum.config.train import resolve
from practicum.engines.base import Sampling
from practicum.environment import Action, Observation, Step
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.models import loader, lora
from practicum.task import Task
from practicum.training.optimizer import OptimizerSettings
from practicum.training.rl_trainer import GroupFilter, RLSettings, RLTrainer
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.trainable_policy import TrainablePolicy, mirrored
from practicum.trajectory import Trajectory

STEPS = 4
AGENT = Agent(max_turns=2, sampling=Sampling(max_tokens=10, stop=("e",)))
SETTINGS = RLSettings(steps=STEPS, tasks_per_step=2, chains=3, lr=1e-3, warmup=0, overlap=True)


class Short(MathEnvironment):
    """Pays for short answers."""

    async def step(self, action: Action) -> Step:
        return Step(reward=1.0 / (1 + len(action.content)), terminated=True)

    async def truncate(self) -> Step:
        return Step(reward=-0.1, truncated=True)


def make(settings: RLSettings = SETTINGS, make_environment: Callable[[], MathEnvironment] = Short) -> RLTrainer:
    policy = TrainablePolicy(loader.load_tiny(0), apart=settings.overlap)
    return RLTrainer(policy, Short().tasks("train", 8), make_environment, AGENT, settings)


def weights(practice: RLTrainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in practice.policy.loaded.model.state_dict().items()}


async def run(practice: RLTrainer, steps: range) -> list[tuple[dict[str, float], list[Trajectory]]]:
    return [await practice.step(number) for number in steps]


async def by_hand(practice: RLTrainer) -> list[dict[str, float]]:
    """The same in one thread, one thing after another."""
    policy = practice.policy
    await policy.refresh()
    now = practice._measured(await practice._gathered(0, None))
    found = []
    for number in range(STEPS):
        await policy.refresh()
        coming = await practice._gathered(number + 1, None) if number + 1 < STEPS else None
        measured = practice._measured(coming) if coming is not None else None
        found.append(practice._learn(number, now, None))
        if measured is not None:
            now = measured
    return found


def plain(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith(("timing/", "staleness/versions"))}


async def closed(practice: RLTrainer, work: Callable[[], object]) -> object:
    try:
        return await work()  # type: ignore[misc]
    finally:
        await practice.policy.close()


CASES = {
    "grpo": SETTINGS,
    "corrected": replace(SETTINGS, importance_cap=2.0),
    "greedy": replace(SETTINGS, estimator="remax"),
    "filtered": replace(SETTINGS, admission=GroupFilter(True, 2), epochs=2, mini_batch=1),
}


@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_same_by_hand(case: str) -> None:
    one, two = make(CASES[case]), make(CASES[case])
    found = asyncio.run(closed(one, lambda: run(one, range(STEPS))))
    wanted = asyncio.run(closed(two, lambda: by_hand(two)))
    assert [plain(metrics) for metrics, _ in found] == [plain(metrics) for metrics in wanted]  # type: ignore[attr-defined]
    mine, theirs = weights(one), weights(two)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert any(not torch.equal(mine[name], value) for name, value in weights(make()).items())


def test_a_batch_is_one_version_old_from_the_second_step_on() -> None:
    practice = make()
    found = asyncio.run(closed(practice, lambda: run(practice, range(STEPS))))
    versions = [{turn.policy_version for episode in episodes for turn in episode.turns} for _, episodes in found]  # type: ignore[attr-defined]
    assert versions == [{0}, {0}, {1}, {2}]
    metrics = [metrics for metrics, _ in found]  # type: ignore[attr-defined]
    assert [one["staleness/versions/mean"] for one in metrics] == [0.0, 1.0, 1.0, 1.0]
    # The engine is what it says it is, and the learner has moved on from it.
    assert all(one["mismatch/logprob/max"] < 1e-4 for one in metrics)
    assert metrics[0]["staleness/logprob/mean"] < 1e-4
    assert all(one["staleness/logprob/mean"] > 1e-3 for one in metrics[1:])


def test_an_engine_that_runs_other_weights_stops_the_run() -> None:
    practice = make(replace(SETTINGS, mismatch_limit=0.01))

    async def go() -> None:
        await practice.policy.refresh()
        gathered = await practice._gathered(0, None)
        spoken = practice.policy.spoken
        assert spoken is not None
        with torch.no_grad():
            spoken.final_norm.mul_(1.5)
        practice._learn(0, practice._measured(gathered), None)

    with pytest.raises(UserError, match="engine and learner disagree"):
        asyncio.run(closed(practice, go))


def test_rollout_and_update_run_at_once() -> None:
    """Worlds of the second batch wait until the learner has begun: one after the other would wait for ever."""
    learning = threading.Event()
    begun: list[str] = []
    waited: list[bool] = []

    class Waiting(Short):
        async def reset(self, task: Task, seed: int) -> Observation:
            begun.append(task.id)
            self.second = len(begun) > SETTINGS.tasks_per_step * SETTINGS.chains
            return await super().reset(task, seed)

        async def step(self, action: Action) -> Step:
            if self.second:
                waited.append(await asyncio.to_thread(learning.wait, 60))
            return await super().step(action)

        async def truncate(self) -> Step:
            await self.step(Action())
            return await super().truncate()

    practice = make(replace(SETTINGS, steps=2), Waiting)
    learn = practice._learn

    def noted(step: int, gathered: RolloutBatch, tick: Callable[[], None] | None) -> dict[str, float]:
        return learn(step, gathered, learning.set)

    practice._learn = noted  # type: ignore[method-assign]
    asyncio.run(closed(practice, lambda: run(practice, range(1))))
    assert len(waited) == 6
    assert all(waited)


def test_a_failed_update_takes_the_rollout_with_it() -> None:
    practice = make()

    def failing(*_: object) -> dict[str, float]:
        raise FloatingPointError("the loss is nan")

    practice._learn = failing  # type: ignore[method-assign]

    async def go() -> None:
        with pytest.raises(FloatingPointError, match="the loss is nan"):
            await practice.step(0)
        assert len(asyncio.all_tasks()) == 1  # nobody is left rolling out

    asyncio.run(closed(practice, go))
    assert practice.state().get("ahead") is None


def test_a_batch_outlives_the_process() -> None:
    """Through JSON and back, the rest of the run is the same to the bit."""
    one, two = make(), make()

    async def broken() -> None:
        await run(one, range(2))
        state = json.loads(json.dumps(one.state(), allow_nan=False, sort_keys=True))
        two.policy.loaded.model.load_state_dict(one.policy.loaded.model.state_dict())
        moments = copy.deepcopy(one.policy.learner.optimizer.state_dict())  # or both would step the same ones
        two.policy.learner.optimizer.load_state_dict(moments)
        two.restore(state)
        for practice in (one, two):
            practice.policy.set_version(practice.policy.version)
        first, second = await run(one, range(2, STEPS)), await run(two, range(2, STEPS))
        assert [list(plain(metrics).items()) for metrics, _ in first] == [
            list(plain(metrics).items()) for metrics, _ in second
        ]  # in the same order too
        await one.policy.close()

    asyncio.run(closed(two, broken))
    mine, theirs = weights(one), weights(two)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert "ahead" not in one.state()  # after the last step there is nothing to come


def test_without_overlap_a_state_is_what_it_was() -> None:
    practice = make(replace(SETTINGS, overlap=False))
    asyncio.run(closed(practice, lambda: run(practice, range(1))))
    assert sorted(practice.state()) == ["clip_scale", "kl_coefficient", "lr_scale", "stream", "version"]


def test_overlap_needs_an_engine_of_its_own() -> None:
    with pytest.raises(ValueError, match="weights of its own"):
        RLTrainer(TrainablePolicy(loader.load_tiny(0)), Short().tasks("train", 2), Short, AGENT, SETTINGS)
    with pytest.raises(UserError, match="trainer.overlap does not go with --from-trajectories"):
        resolve(["trainer.overlap=true", "data.from_trajectories=x"])


def test_only_what_is_trained_is_copied() -> None:
    adapted = lora.add_adapter(loader.load_tiny(0), lora.LoRASettings(4))
    copied = mirrored(adapted.model)
    for (name, theirs), mine in zip(adapted.model.named_parameters(), copied.parameters(), strict=True):
        assert torch.equal(theirs, mine)
        assert (theirs.data_ptr() == mine.data_ptr()) == ("lora_" not in name), name
        assert not mine.requires_grad
    policy = TrainablePolicy(adapted, apart=True)
    policy.reset_optimizer(OptimizerSettings())
    with torch.no_grad():
        for weight in adapted.model.parameters():
            if weight.requires_grad:
                weight.add_(1.0)
    assert policy.spoken is not None
    before = [weight.clone() for weight in policy.spoken.model.parameters()]
    asyncio.run(policy.refresh())
    pairs = list(zip(policy.spoken.model.parameters(), adapted.model.parameters(), before, strict=True))
    assert all(torch.equal(mine, theirs) for mine, theirs, _ in pairs)
    assert any(not torch.equal(mine, old) for mine, _, old in pairs)
