"""Rollouts beside the training: how old tokens become, which tasks a step has, and what a checkpoint keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from practicum.agent import Agent
from practicum.config.resolve import resolve_train
from practicum.engines.base import Sampling
from practicum.environment import Action, Message, Observation, Step
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.models import loader
from practicum.task import Task
from practicum.training.async_source import AsyncSource, staleness_metrics
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.rollout_source import OnlineSource
from practicum.training.settings import RLSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn
from practicum.utils.concurrency import RequestGate
from tests.training.settings import rl_settings

STEPS, TASKS, CHAINS = 6, 2, 3
AGENT = Agent(max_turns=3, sampling=Sampling(max_tokens=8, stop=("e",)))


class SlowTools(MathEnvironment):
    """Three turns; in one task of each batch a tool is slow between them."""

    seconds = 0.4

    async def reset(self, task: Task, seed: int) -> Observation:
        self._slow, self._turns = int(task.id.split("-")[-1]) % TASKS == 0, 0
        return await super().reset(task, seed)

    async def step(self, action: Action) -> Step:
        self._turns += 1
        if self._slow:
            await asyncio.sleep(self.seconds)
        reward = 1.0 / (1 + len(action.content))
        return Step(Observation((Message("user", "go on"),)), reward=reward, terminated=self._turns == 3)

    async def truncate(self) -> Step:
        return Step(truncated=True)


def settings_of(staleness: int, **changes: Any) -> RLSettings:
    return replace(
        rl_settings(total_training_steps=STEPS, train_batch_size=TASKS, num_chains=CHAINS, lr=1e-3, lr_warmup_steps=0),
        max_staleness=staleness,
        **changes,
    )


def make(settings: RLSettings) -> RLTrainer:
    policy = TrainablePolicy(loader.load_tiny(0), separate_engine_weights=settings.max_staleness > 0)
    online = OnlineSource(policy, SlowTools().tasks("train", 20), SlowTools, AGENT, settings)
    return RLTrainer(policy, AsyncSource(online) if settings.max_staleness else online, settings)


def carry_out(trainer: RLTrainer, work: Callable[[], Awaitable[Any]]) -> Any:
    async def run_steps() -> Any:
        try:
            return await work()
        finally:
            await trainer.close()
            await trainer.policy.close()

    return asyncio.run(run_steps())


async def run(trainer: RLTrainer, steps: range) -> list[tuple[dict[str, float], list[Trajectory]]]:
    return [await trainer.step(number) for number in steps]


def attempts(episodes: list[Trajectory]) -> list[tuple[str, int]]:
    return [(episode.group, episode.attempt) for episode in episodes]


@pytest.mark.parametrize("staleness", [1, 3])
def test_no_token_is_older_than_the_bound_and_no_task_is_left_out(staleness: int) -> None:
    """Every step has the tasks of a synchronous run, slow ones too, and versions change between turns."""
    trainer, reference = make(settings_of(staleness)), make(settings_of(0))
    results = carry_out(trainer, lambda: run(trainer, range(STEPS)))
    synchronous = carry_out(reference, lambda: run(reference, range(STEPS)))
    assert [attempts(episodes) for _, episodes in results] == [attempts(episodes) for _, episodes in synchronous]
    ages = []
    for step, (metrics, episodes) in enumerate(results):
        versions = [turn.policy_version for episode in episodes for turn in episode.turns]
        assert max(versions) <= step
        ages.append(step - min(versions))
        assert metrics["staleness/steps/max"] == step - min(versions)
        assert metrics["mismatch/logprob/mean"] < 1e-4  # the engine has the weights that the learner had
    assert max(ages) == staleness
    mixed = [len({turn.policy_version for turn in item.turns}) > 1 for _, episodes in results for item in episodes]
    assert any(mixed)
    assert all(episode.scored for _, episodes in results for episode in episodes)


def test_turns_that_the_environment_chose_have_no_age() -> None:
    """Such a turn has no tokens and version 0: it is not older than the bound."""
    first_versions = [(4, 4), (5, 5)]
    sampled = Turn((Span(Origin.SAMPLED, (1,), (0.0,)),), False, (), "", Action(""), "policy", 4, StopReason.END, 0)
    chosen = Turn((), True, (), "", Action(""), "recovery", 0, StopReason.END, 0)
    episode = Trajectory(
        SlowTools().tasks("train", 1)[0], 0, "step-5/", Outcome.SUCCESS, (chosen, sampled), 1.0, {}, Seeds(0, 0)
    )
    batch = RolloutBatch(5, [episode], [[episode]], {}, {})
    metrics = staleness_metrics(5, batch, first_versions, 1, None)
    assert metrics == {"staleness/steps/mean": 1.0, "staleness/steps/max": 1.0}
    too_old = replace(episode, turns=(chosen, replace(sampled, policy_version=3)))
    with pytest.raises(AssertionError, match="version 3 is more than 1 steps old"):
        staleness_metrics(5, replace(batch, groups=[[too_old]]), first_versions, 1, None)


def test_corrections_are_those_of_the_weights_that_sampled() -> None:
    """With `tis_imp_ratio_cap` the old log-probs are the learner's, and weights correct for the sampling ones."""
    trainer = make(settings_of(2, tis_imp_ratio_cap=2.0))
    weights: list[torch.Tensor] = []
    update = trainer.policy.update

    def noted(samples: Any, *rest: Any) -> dict[str, float]:
        weights.extend(torch.as_tensor(item.corrections[item.mask]) for item in samples)
        return update(samples, *rest)

    trainer.policy.update = noted  # type: ignore[method-assign]
    carry_out(trainer, lambda: run(trainer, range(4)))
    joined = torch.cat(weights)
    assert joined.max() <= 2.0
    assert (joined - 1).abs().max() > 1e-3  # some tokens are stale
    assert (joined - 1).abs().min() < 1e-4


def test_a_resumed_run_trains_on_every_finished_episode_once() -> None:
    trainer = make(settings_of(3))

    async def until_others_have_finished() -> dict[str, Any]:
        await run(trainer, range(2))
        await asyncio.sleep(0.6)
        text: dict[str, Any] = json.loads(json.dumps(trainer.state()))
        return text

    state = carry_out(trainer, until_others_have_finished)
    finished = state["practice"]["finished"]
    assert finished
    resumed, played = make(settings_of(3)), []
    resumed.on_episode = played.append
    resumed.policy.set_version(2)
    resumed.restore(state)
    again = carry_out(resumed, lambda: run(resumed, range(2, STEPS)))
    tasks = [attempts(episodes) for _, episodes in again]
    assert tasks == [
        [(f"step-{step}/{task.id}", attempt) for task in SlowTools().tasks("train", 20)[step * 2 : step * 2 + 2]
         for attempt in range(CHAINS)]
        for step in range(2, STEPS)
    ]  # fmt: skip
    assert len(played) == sum(map(len, tasks)) - len(finished)


def test_requests_wait_for_the_end_of_a_pause() -> None:
    gate, order = RequestGate(), []

    async def request(name: str, seconds: float) -> None:
        await gate.enter()
        order.append(f"{name} begins")
        await asyncio.sleep(seconds)
        order.append(f"{name} ends")
        gate.leave()

    async def run_steps() -> None:
        first = asyncio.create_task(request("first", 0.05))
        await asyncio.sleep(0)
        later = []
        async with gate.paused():
            order.append("pause")
            later = [asyncio.create_task(request(name, 0.0)) for name in ("second", "third")]
            await asyncio.sleep(0.02)
            order.append("resume")
        await asyncio.gather(first, *later)

    asyncio.run(run_steps())
    assert order[:4] == ["first begins", "first ends", "pause", "resume"]
    assert order.index("second begins") < order.index("third begins")
    assert gate.num_open == 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["trainer.overlap=true"], "trainer.overlap=true yet"),
        (["algorithm.filter_groups.enable=true", "algorithm.adv_estimator=grpo"], "filter_groups yet: which tasks"),
        (["data.curriculum.enable=true"], "data.curriculum yet"),
        (["actor_rollout_ref.rollout.name=vllm"], "rollout.name=vllm yet"),
        (["trainer.n_gpus_per_node=2", "trainer.device=cpu"], "2 learner ranks yet"),
    ],
)
def test_what_does_not_go_with_it_is_refused(keys: list[str], message: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=f"max_staleness=2 does not go with .*{message}"):
        resolve_train(["trainer.max_staleness=2", *keys])
