"""Groups, advantages per token, and what must stop a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from practicum.agent import Agent
from practicum.engines.base import Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Action, Message, Observation, Step
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.task import Task
from practicum.training.critic import with_next_state
from practicum.training.estimators import EstimatorSettings
from practicum.training.micro_batches import Sample, sft_samples, unweighted_samples
from practicum.training.objective import build_samples, collate
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.rollout_source import OnlineSource, group_scored, rollout_metrics
from practicum.training.settings import GroupFilter, RLSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn
from tests.training.settings import CRITIC, rl_settings


def turn(prompt: tuple[int, ...], reply: tuple[int, ...], restart: bool = False) -> Turn:
    return Turn(
        spans=(Span(Origin.OBSERVATION, prompt), Span(Origin.SAMPLED, reply, tuple(-0.1 * i for i in reply))),
        restart=restart,
        messages=(),
        reply="",
        action=Action(),
        source=ActionSource.POLICY,
        policy_version=0,
        stop_reason=StopReason.END,
        seed=0,
    )


def episode(group: str, reward: float, outcome: Outcome = Outcome.FAILURE, *turns: Turn) -> Trajectory:
    body = turns or (turn((1, 2), (3, 4), True), turn((5,), (6,)))
    return Trajectory(Task(group, "x", "train"), 0, group, outcome, body, reward, {}, Seeds(0, 0))


def flat(*values: float) -> list[np.ndarray]:
    return [np.full(3, value) for value in values]


def test_only_sampled_tokens_have_advantages() -> None:
    ((first, second),) = build_samples([[episode("a", 1), episode("a", 0)]], [flat(0.5, -0.5)], "token-mean", 1.0)
    batch = collate([first, second])
    samples, denominator = batch.samples, batch.denominator
    assert denominator == 6.0
    first = samples[0]
    assert first.ids == (1, 2, 3, 4, 5, 6)
    assert first.mask.tolist() == [False, False, True, True, False, True]
    assert first.advantages.tolist() == [0, 0, 0.5, 0.5, 0, 0.5]
    assert np.allclose(first.sampling_logprobs, [0, 0, -0.3, -0.4, 0, -0.6])


def test_a_restarted_prompt_is_a_sequence_of_its_own_but_one_trajectory() -> None:
    second = episode("a", 1, Outcome.SUCCESS, turn((1,), (2, 3), True), turn((9, 9), (4, 5), True))
    (weighted,) = build_samples([[second, episode("a", 0)]], [[np.ones(4), -np.ones(3)]], "seq-mean-token-mean", 1.0)
    batch = collate(weighted)
    samples, denominator = batch.samples, batch.denominator
    assert [s.ids for s in samples[:2]] == [(1, 2, 3), (9, 9, 4, 5)]
    assert denominator == 2.0
    assert samples[0].weights.max() == samples[1].weights.max() == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("aggregation", "weights"), [("token-mean", [1, 1, 1]), ("seq-mean-turn-mean-token-mean", [0.25, 0.25, 0.5])]
)
def test_a_turn_without_sampled_tokens_has_no_weight(aggregation: str, weights: list[float]) -> None:
    silent = turn((9,), ())
    rewarded = episode(
        "a", 1, Outcome.SUCCESS, turn((1,), (2, 3), True), silent, turn((7,), (4,), True), turn((8,), (), True)
    )
    (weighted,) = build_samples([[rewarded]], [[np.array([0.1, 0.2, 0.3])]], aggregation, 1.0)
    samples = weighted[0].samples
    assert [s.ids for s in samples] == [(1, 2, 3, 9), (7, 4)]  # the last run has nothing to teach
    assert [w for s in samples for w in s.weights[s.mask].tolist()] == weights
    assert [s.advantages.tolist() for s in samples] == [[0, np.float32(0.1), np.float32(0.2), 0], [0, np.float32(0.3)]]


def test_a_reply_in_several_spans_is_one_reply() -> None:
    loop = turn((1,), (5, 5, 5), True)
    halves = replace(loop, spans=(*loop.spans, Span(Origin.TEMPLATE, (1,)), Span(Origin.SAMPLED, (5, 5, 5))))
    metrics = rollout_metrics([episode("a", 1, Outcome.SUCCESS, halves)])
    assert metrics["rollout/repetition"] == pytest.approx(2 / 3)
    assert metrics["response_length/mean"] == 6.0


def test_figures_of_the_environment_are_means_over_the_episodes_that_have_them() -> None:
    def ended(info: dict[str, object]) -> Trajectory:
        return episode("a", 1, Outcome.SUCCESS, turn((1,), (2,), True), replace(turn((3,), (4,)), info=info))

    plays = [ended({"valid": 1.0, "questions": 2, "score": 0.8, "problem": "x", "won": True}), ended({"valid": 0.0})]
    metrics = rollout_metrics(plays)
    figures = {name: value for name, value in metrics.items() if name.startswith("figure/")}
    assert figures == {"figure/questions/mean": 2.0, "figure/score/mean": 0.8, "figure/valid/mean": 0.5}


def test_groups_without_signal_add_to_the_denominator_only() -> None:
    group = [episode("a", 1), episode("a", 1)]
    (weighted,) = build_samples([group], [flat(0.0, 0.0)], "token-mean", 1.0)
    batch = collate(weighted)
    samples, denominator = batch.samples, batch.denominator
    assert samples == []
    assert denominator == 6.0
    kept = collate(weighted, keep_all=True).samples
    assert len(kept) == 2  # an entropy bonus is for their tokens too


def test_only_scored_episodes_reach_a_baseline() -> None:
    crashed = episode("a", 0.0, Outcome.ENV_ERROR)
    groups = group_scored([episode("a", 1, Outcome.SUCCESS), crashed, episode("a", 0), episode("b", 1), crashed])
    assert [[e.outcome.value for e in g] for g in groups] == [["success", "failure"]]
    metrics = rollout_metrics([episode("a", 1, Outcome.SUCCESS), crashed])
    assert metrics["reward/mean"] == 1.0
    assert metrics["outcome/env_error"] == 1.0


def test_unscored_demonstrations_are_not_trained_on() -> None:
    assert len(sft_samples([episode("a", 1, Outcome.SUCCESS), episode("a", 0, Outcome.TIMEOUT)])) == 1


AGENT = Agent(max_turns=1, sampling=Sampling(max_tokens=12, stop=("e",)))
SETTINGS = rl_settings(total_training_steps=1, train_batch_size=2, num_chains=2)


class Dead(MathEnvironment):
    async def reset(self, task: Task, seed: int) -> Observation:
        raise ConnectionError("the simulator is gone")


def make_trainer(make: type[MathEnvironment], agent: Agent = AGENT, settings: RLSettings = SETTINGS) -> RLTrainer:
    policy = TrainablePolicy(loader.load_tiny(0))
    return RLTrainer(policy, OnlineSource(policy, make().tasks("train", 2), make, agent, settings), settings)


def step(run: RLTrainer) -> dict[str, float]:
    async def once() -> dict[str, float]:
        try:
            return (await run.step(0))[0]
        finally:
            await run.policy.close()

    return asyncio.run(once())


def test_a_dead_environment_stops_the_run_with_its_reason() -> None:
    with pytest.raises(UserError, match="4 of 4 episodes could not be scored .*the simulator is gone"):
        step(make_trainer(Dead))


def test_failures_within_the_budget_change_nothing() -> None:
    """All chains fail in one group, none learns anything: the weights stay as they were."""
    run = make_trainer(Dead, settings=replace(SETTINGS, error_budget=1.0))
    before = {k: v.clone() for k, v in run.policy.loaded.model.state_dict().items()}
    metrics = step(run)
    assert metrics["outcome/env_error"] == 4.0
    assert all(torch.equal(v, before[k]) for k, v in run.policy.loaded.model.state_dict().items())


class Flat(MathEnvironment):
    async def step(self, action: Action) -> Step:
        return Step(reward=1.0, terminated=True)

    async def truncate(self) -> Step:
        return Step(reward=1.0, truncated=True)


def test_a_step_without_an_update_measures_the_mismatch_too() -> None:
    metrics = step(make_trainer(Flat, settings=replace(SETTINGS, num_chains=8)))
    assert metrics["rollout/dead_groups"] == 1.0
    assert "actor/grad_norm" not in metrics
    assert 0 < metrics["mismatch/logprob/max"] <= 1e-4


class Lottery(MathEnvironment):
    async def step(self, action: Action) -> Step:
        return Step(reward=float(len(action.content) % 3), terminated=True)


def test_an_engine_that_does_not_run_the_trained_policy_stops_the_run() -> None:
    """An engine that decodes other weights than the learner trains."""
    settings, stale = replace(SETTINGS, num_chains=8), Decoder(loader.load_tiny(1).model)
    policy = TrainablePolicy(loader.load_tiny(0), make_engine=lambda renderer: LocalEngine(stale, renderer))
    source = OnlineSource(policy, Lottery().tasks("train", 2), Lottery, AGENT, settings)
    with pytest.raises(UserError, match="the engine is not running the policy being trained"):
        step(RLTrainer(policy, source, settings))


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        (replace(AGENT, sampling=Sampling(temperature=0.0)), SETTINGS, "temperature above 0"),
        (AGENT, replace(SETTINGS, train_batch_size=9), "fewer than the 9 of one step"),
    ],
)
def test_impossible_settings_are_refused(agent: Agent, settings: RLSettings, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_trainer(MathEnvironment, agent, settings)


class HalfLottery(Lottery):
    """The rewards of one task differ, those of the other do not."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.is_flat = task.id.endswith("0")
        return await super().reset(task, seed)

    async def step(self, action: Action) -> Step:
        return Step(reward=1.0, terminated=True) if self.is_flat else await super().step(action)

    async def truncate(self) -> Step:
        return Step(reward=float(self.is_flat), truncated=True)


def test_metrics_cover_all_tokens_not_only_those_of_groups_with_signal() -> None:
    settings = replace(SETTINGS, num_chains=8, lr=1e-12, total_training_steps=1)
    run, episodes = make_trainer(HalfLottery, settings=settings), []
    run.on_episode = episodes.append
    metrics = step(run)
    assert metrics["rollout/dead_groups"] == 0.5
    samples = [sample for item in episodes for sample in unweighted_samples(item)]
    expected = run.policy.learner.measure(samples, settings.objective)
    assert metrics["actor/tokens"] == expected["actor/tokens"] == sum(int(sample.mask.sum()) for sample in samples)
    assert metrics["actor/entropy"] == pytest.approx(expected["actor/entropy"], rel=1e-6)
    assert metrics["mismatch/logprob/mean"] == pytest.approx(expected["mismatch/logprob/mean"], rel=0.2)


@pytest.mark.parametrize(("filtered", "groups", "share"), [(False, 2, 1.0), (True, 1, 0.5)])
def test_a_step_that_dynamic_sampling_could_not_fill_trains_at_a_smaller_rate(
    filtered: bool, groups: int, share: float
) -> None:
    settings = replace(
        SETTINGS,
        num_chains=8,
        lr=1e-4,
        lr_warmup_steps=0,
        total_training_steps=1,
        filter_groups=GroupFilter(filtered, 1),
    )
    metrics = step(make_trainer(HalfLottery, settings=settings))
    assert metrics["rollout/groups_trained"] == groups
    assert metrics["actor/lr"] == pytest.approx(share * 1e-4)


class GivenGroups:
    """A source of groups that were made before."""

    from_engine, metric_names, agent = False, {}, AGENT

    def __init__(self, groups: list[list[Trajectory]]) -> None:
        self.groups = groups

    def state(self) -> dict[str, object]:
        return {}

    def restore(self, state: object) -> None:
        return None

    async def collect(self, step: int, on_episode: object = None) -> RolloutBatch:
        return RolloutBatch(step, [item for group in self.groups for item in group], self.groups, {}, {}, {}, 0.0)


@pytest.mark.parametrize(
    ("count", "size", "sizes"), [(7, 3, [3, 4]), (5, 4, [5]), (8, 4, [4, 4]), (9, 2, [2, 2, 2, 3])]
)
def test_mini_batches_are_of_equal_size_where_groups_were_dropped(
    count: int, size: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [[episode(f"g{n}", 1.0), episode(f"g{n}", 0.0)] for n in range(count)]
    settings = replace(SETTINGS, train_batch_size=10, ppo_mini_batch_size=size)
    policy, trained = TrainablePolicy(loader.load_tiny(0)), []

    def update(samples: list[Sample], *rest: object) -> dict[str, float]:
        trained.append(len(samples) // 2)
        return {"actor/loss": 0.0}

    monkeypatch.setattr(policy, "update", update)
    step(RLTrainer(policy, GivenGroups(groups), settings))
    assert sorted(trained) == sizes


def test_returns_of_truncated_episodes_continue_with_the_value_of_the_next_turn() -> None:
    estimation = EstimatorSettings(gamma=0.9, lam=0.0, bootstrap_truncated=True)
    settings = replace(SETTINGS, adv_estimator="gae", estimation=estimation, critic=CRITIC)

    class Endless(MathEnvironment):
        async def step(self, action: Action) -> Step:
            return Step(Observation((Message("user", "Go on."),)), reward=0.5)

    run = make_trainer(Endless, replace(AGENT, max_turns=2), settings)
    assert run.critic is not None
    with torch.no_grad():
        run.critic.head.outer.weight.normal_(generator=torch.Generator().manual_seed(0))
    expected: list[float] = []

    def on_advantages(groups: list[list[Trajectory]], advantages: list[list[np.ndarray]]) -> None:
        assert run.critic is not None
        for item in (item for group in groups for item in group):
            assert item.outcome is Outcome.TRUNCATED
            (sample,) = unweighted_samples(item)
            following = run.policy.renderer.extend(sample.ids, item.closing)
            longer = with_next_state(sample, [token for span in following for token in span.ids])
            (values,) = run.critic.values([longer])
            rewards = np.zeros(len(values) - 1)
            rewards[-1] = item.reward
            expected.extend(rewards + 0.9 * values[1:].double().numpy())

    run.on_advantages = on_advantages
    metrics = step(run)
    assert metrics["critic/returns/mean"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert metrics["critic/returns/max"] == pytest.approx(np.max(expected), rel=1e-5)
