"""Adapters per role with a critic and beside rollouts, and the group filter where each role has its own reward."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from practicum.agent import Agent, RoleSettings
from practicum.algorithms import kl
from practicum.chat.renderer import Renderer
from practicum.engines.base import Sampling
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.errors import UserError
from practicum.models import loader, lora
from practicum.rollout import run_episode
from practicum.task import Task
from practicum.training.estimators import EstimatorSettings
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.rollout_source import OnEpisode, OnlineSource, has_signal
from practicum.training.settings import GroupFilter, RLSettings
from practicum.training.trainable_policy import TrainablePolicy, sharing_weights
from practicum.trajectory import Attempt, Seeds, Trajectory
from tests.test_roles import EchoEngine
from tests.training.settings import rl_settings

ROLES = ("worker", "manager")
STEPS = 3
ESTIMATION = EstimatorSettings(train_roles=ROLES, bootstrap_truncated=True)
SETTINGS = rl_settings(
    total_training_steps=STEPS, train_batch_size=1, num_chains=3, lr=1e-2, lr_warmup_steps=0, estimation=ESTIMATION
)
AGENT = Agent(max_turns=2, sampling=Sampling(max_tokens=6, stop=("e",)), roles={name: RoleSettings() for name in ROLES})


class Relay(Environment):
    """The manager speaks, then the worker; both are paid for short replies, each also by itself."""

    name = "relay"
    roles = ROLES

    def tasks(self, split: str, count: int, seed: int = 0) -> list[Task]:
        return [Task(f"{split}-{n}", self.name, split, {"n": n}) for n in range(count)]

    async def reset(self, task: Task, seed: int) -> Observation:
        self.first: float | None = None
        return Observation((Message("user", f"plan {task.fields['n']}"),), role="manager")

    async def step(self, action: Action) -> Step:
        worth = 1.0 / (1 + len(action.content))
        if self.first is None:
            self.first = worth
            return Step(Observation((Message("user", "do"),), role="worker", fresh=True))
        own = {"manager": self.first, "worker": worth}
        return Step(reward=self.first + worth, terminated=True, role_rewards=own)


def make(settings: RLSettings, source: type[OnlineSource] = OnlineSource, overlap: bool = False) -> RLTrainer:
    base, adapter = loader.load_tiny(0), lora.LoRASettings(4, 8.0)
    policy = TrainablePolicy(lora.add_adapter(sharing_weights(base), adapter, 0), separate_engine_weights=overlap)
    for number, name in enumerate(ROLES, 1):
        loaded = lora.add_adapter(sharing_weights(base), adapter, number)
        policy.role_policies[name] = TrainablePolicy(loaded, separate_engine_weights=overlap)
    return RLTrainer(policy, source(policy, Relay().tasks("train", 8), Relay, AGENT, settings), settings)


async def run(trainer: RLTrainer, steps: int = STEPS) -> list[tuple[dict[str, float], list[Trajectory]]]:
    try:
        return [await trainer.step(number) for number in range(steps)]  # type: ignore[misc]
    finally:
        await trainer.policy.close()


def adapters(trainer: RLTrainer) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value.clone()
        for name, model in (("", trainer.policy), *trainer.policy.role_policies.items())
        for key, value in model.loaded.model.state_dict().items()
        if "lora_" in key
    }


def changed_roles(before: dict[str, torch.Tensor], trainer: RLTrainer) -> set[str]:
    after = adapters(trainer)
    return {key.partition("/")[0] for key in before if not torch.equal(before[key], after[key])}


@pytest.mark.parametrize(
    ("estimator", "credit"), [("gae", "shared"), pytest.param("turn_gae", "own", marks=pytest.mark.slow)]
)
def test_a_critic_values_the_states_of_all_roles(estimator: str, credit: str) -> None:
    trainer = make(
        replace(SETTINGS, adv_estimator=estimator, estimation=replace(ESTIMATION, role_credit=credit)),
    )
    assert trainer.critic is not None
    head, before = trainer.critic.head.outer.weight.clone(), adapters(trainer)
    metrics = [metrics for metrics, _ in asyncio.run(run(trainer, 2))]
    assert changed_roles(before, trainer) == set(ROLES)
    assert not torch.equal(head, trainer.critic.head.outer.weight)
    assert all(one["critic/vf_loss"] >= 0 for one in metrics)
    assert all(f"role/{role}/actor/pg_loss" in metrics[0] for role in ROLES)


class OneStepAhead(OnlineSource):
    """Rolls out the batch of the next step before it gives that of this one, in the same thread."""

    coming: RolloutBatch | None = None

    async def collect(self, step: int, on_episode: OnEpisode | None = None) -> RolloutBatch:
        await self.policy.refresh()
        batch = self.coming or await super().collect(step, on_episode)
        self.coming = await super().collect(step + 1, on_episode) if step + 1 < STEPS else None
        return batch


def plain(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith(("timing/", "staleness/versions"))}


def test_adapters_are_updated_while_the_next_batch_is_rolled_out() -> None:
    """The same numbers as one thing after another; each role's batch is one version of its own model old."""
    one = make(replace(SETTINGS, overlap=True), overlap=True)
    two = make(replace(SETTINGS, mismatch_limit=9.0), OneStepAhead, overlap=True)
    before = adapters(one)
    overlapped, sequential = asyncio.run(run(one)), asyncio.run(run(two))
    for (first, _), (second, _) in zip(overlapped, sequential, strict=True):
        renamed = {name.replace("staleness/", "mismatch/"): value for name, value in plain(first).items()}
        assert renamed == plain(second)
    actual, expected = adapters(one), adapters(two)
    assert all(torch.equal(actual[key], expected[key]) for key in actual)
    assert changed_roles(before, one) == set(ROLES)
    assert [metrics["staleness/versions/mean"] for metrics, _ in overlapped] == [0.0, 1.0, 1.0]
    assert all(metrics[f"role/{role}/mismatch/logprob/max"] < 1e-4 for metrics, _ in overlapped for role in ROLES)


def test_a_group_has_signal_where_a_trained_roles_own_reward_differs(renderer: Renderer) -> None:
    task = Attempt(Task("t", "relay", "train", {"n": 0}), 0, Seeds(1, 2))
    one = asyncio.run(run_episode(task, Relay, AGENT, EchoEngine(renderer, ["a", "b"]), renderer))
    last = replace(one.turns[1], role_rewards={"manager": 0.0, "worker": 0.5})
    two = replace(one, turns=(one.turns[0], last))  # the same reward of the episode
    own = replace(ESTIMATION, role_credit="own")
    assert not has_signal([one, two], {}, ESTIMATION)
    assert has_signal([one, two], {}, own)
    assert not has_signal([one, two], {}, replace(own, train_roles=("worker",)))


def test_the_group_filter_goes_by_the_roles_own_rewards() -> None:
    own = replace(ESTIMATION, role_credit="own")
    trainer = make(replace(SETTINGS, estimation=own, filter_groups=GroupFilter(True, 2)))
    (metrics, _), *_ = asyncio.run(run(trainer, 1))
    assert metrics["rollout/groups_trained"] == 1
    with pytest.raises(UserError, match="remax goes by the episode's reward"):
        make(replace(SETTINGS, estimation=own, adv_estimator="remax"))


class Unreached(Relay):
    """The manager alone acts."""

    async def step(self, action: Action) -> Step:
        return Step(reward=1.0 / (1 + len(action.content)), terminated=True)


@pytest.mark.parametrize("credit", ["shared", "own"])
@pytest.mark.parametrize("changed", [{}, {"use_kl_in_reward": True}, {"adv_estimator": "gae"}])
def test_a_step_in_which_no_trained_role_acts_changes_nothing(changed: dict[str, Any], credit: str) -> None:
    settings = replace(SETTINGS, kl_ctrl=kl.Controller("adaptive", 0.1, 0.1, 10), **changed)
    trainer = make(replace(settings, estimation=replace(ESTIMATION, train_roles=("worker",), role_credit=credit)))
    trainer.source.make_environment = Unreached  # type: ignore[attr-defined]
    before = adapters(trainer)
    steps = asyncio.run(run(trainer, 2))
    assert changed_roles(before, trainer) == set()
    assert trainer.kl_control.kl_coef == 0.1
    assert all(math.isfinite(value) for metrics, _ in steps for value in metrics.values())


def test_a_greedy_rollout_is_greedy_for_all_trained_roles() -> None:
    agent = replace(AGENT, roles={"worker": RoleSettings(temperature=0.7), "manager": RoleSettings(temperature=0.9)})
    settings = replace(SETTINGS, adv_estimator="remax")
    trainer = make(settings)
    manager = trainer.policy.role_policies.pop("manager")
    trainer.policy.role_engines["manager"] = manager.engine, manager.renderer
    source = OnlineSource(trainer.policy, Relay().tasks("train", 8), Relay, agent, settings)
    temperatures: list[dict[str, float]] = []

    async def note(planned: Sequence[Attempt], make: object, agent: Agent, **more: object) -> Any:
        policies = trainer.policy.policies(agent)
        temperatures.append({name: policy.sampling.temperature for name, policy in policies.items()})
        return await roll_out(planned, make, agent, **more)

    roll_out: Any = trainer.policy.roll_out
    trainer.policy.roll_out = note  # type: ignore[method-assign, assignment]
    asyncio.run(source.greedy_rewards(source.stream.take(1), ""))
    assert temperatures == [{"worker": 0.0, "manager": 0.9}]
    asyncio.run(trainer.policy.close())


def test_a_trained_role_has_no_temperature_of_zero() -> None:
    agent = replace(AGENT, roles={"worker": RoleSettings(temperature=0.0)})
    trainer = make(SETTINGS)
    source = OnlineSource(trainer.policy, Relay().tasks("train", 8), Relay, agent, SETTINGS)
    with pytest.raises(UserError, match=r"agent\.roles\.worker\.temperature must be above 0"):
        RLTrainer(trainer.policy, source, SETTINGS)
    only_manager = replace(SETTINGS, estimation=replace(ESTIMATION, train_roles=("manager",)))
    RLTrainer(trainer.policy, source, only_manager)
    asyncio.run(trainer.policy.close())
