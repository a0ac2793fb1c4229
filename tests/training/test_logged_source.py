"""Training on a log: ratios against the log's own policy, the floor, missing log-probs, exact resume."""

from __future__ import annotations

import asyncio
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from practicum.agent import Agent
from practicum.config.resolve import resolve_train
from practicum.data import store
from practicum.engines.base import Sampling
from practicum.environment import Action, Step
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.models import loader
from practicum.training import build
from practicum.training.checkpoint import Checkpoints
from practicum.training.logged_source import (
    GROUP_ESTIMATORS,
    LoggedSource,
    TrajectoryLog,
    read_trajectory_log,
    signal_groups,
    with_logprobs,
)
from practicum.training.micro_batches import MicroBatchLimits, unweighted_samples
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_batch import TrajectoryGroups
from practicum.training.settings import RLSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Origin, Outcome, Trajectory, plan_attempts
from tests.training.settings import POLICY_GRADIENT, policy_gradient, rl_settings

from .test_rl_trainer import episode, turn

AGENT = Agent(max_turns=1, sampling=Sampling(max_tokens=10, stop=("e",)))
LEASH = policy_gradient(kl_loss_coef=0.1, kl_loss_type="mse")
PLAIN = rl_settings(
    total_training_steps=9, train_batch_size=1, lr=1e-3, lr_warmup_steps=0, objective=LEASH, grad_clip=0.0
)


class ByLength(MathEnvironment):
    """Pays for short answers."""

    async def step(self, action: Action) -> Step:
        return Step(reward=1.0 / (1 + len(action.content)), terminated=True)


@pytest.fixture(scope="module")
def logged() -> list[Trajectory]:
    """Five tasks, four episodes each, of the tiny model as it is born."""

    async def play() -> list[Trajectory]:
        policy = TrainablePolicy(loader.load_tiny(0))
        try:
            return await policy.roll_out(plan_attempts(ByLength().tasks("train", 5), 4, 0), ByLength, AGENT)
        finally:
            await policy.close()

    return asyncio.run(play())


@pytest.fixture(scope="module")
def folder(logged: list[Trajectory], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("log")
    for trajectory in logged:
        store.write_episode(out, trajectory)
    return out


def log_of(*episodes: Trajectory) -> TrajectoryLog:
    return TrajectoryLog(Path("somewhere"), episodes, 0)


def train(groups: TrajectoryGroups, settings: RLSettings = PLAIN, steps: int = 1, **more: Any) -> tuple[RLTrainer, Any]:
    """Train for some steps on groups; the trainer and the metrics of the steps."""
    policy = TrainablePolicy(loader.load_tiny(0), limits=more.pop("limits", None))
    source = LoggedSource(policy, groups, AGENT, settings, more.pop("say", lambda text: None))
    trainer = RLTrainer(policy, source, settings)
    if more.pop("frozen", False):
        policy.learner.optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]

    async def go() -> list[dict[str, float]]:
        try:
            return [(await trainer.step(number))[0] for number in range(steps)]
        finally:
            await policy.close()

    return trainer, asyncio.run(go())


def policy_logprobs(model: torch.nn.Module, trajectory: Trajectory, temperature: float = 1.0) -> np.ndarray:
    """By Hugging Face's own forward, of the sampled tokens."""
    (sample,) = unweighted_samples(trajectory)
    ids = torch.tensor([sample.ids])
    with torch.no_grad():
        table = (model(ids).logits[0, :-1].double() / temperature).log_softmax(-1)
    return table.gather(-1, ids[0, 1:, None])[:, 0][torch.from_numpy(sample.mask[1:])].numpy()


def gradient(trainer: RLTrainer) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in trainer.policy.loaded.model.named_parameters() if p.grad is not None}


def shifted(trajectory: Trajectory, by: float, temperature: float = 1.0) -> Trajectory:
    """Logged by a policy that was exp(by) times as sure of every token as the tiny model is."""
    reference = policy_logprobs(loader.load_tiny(0).model, trajectory, temperature)
    moved = with_logprobs(trajectory, np.minimum(reference + by, 0).tolist())
    return replace(moved, provenance={**trajectory.provenance, "temperature": temperature})


# -- which groups -------------------------------------------------------------------------------


def test_episodes_are_grouped_by_task_and_groups_without_signal_left_out() -> None:
    log = log_of(
        replace(episode("a", 1.0), group="step-0/a"),
        replace(episode("a", 0.0), group="step-7/a"),  # another day, the same task
        episode("b", 1.0),
        episode("b", 1.0),
        episode("c", 1.0),
    )
    assert [[e.reward for e in group] for group in signal_groups(log)] == [[1.0, 0.0]]
    with pytest.raises(UserError, match="No task below 'somewhere' .2 of them. has episodes of different reward"):
        signal_groups(log_of(episode("b", 1.0), episode("b", 1.0), episode("c", 1.0)))


def test_only_scored_episodes_are_read(logged: list[Trajectory], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no folder"):
        read_trajectory_log(tmp_path / "none")
    with pytest.raises(UserError, match="There is no episode below"):
        read_trajectory_log(tmp_path)
    store.write_episode(tmp_path, replace(logged[0], outcome=Outcome.ENV_ERROR))
    with pytest.raises(UserError, match="None of the 1 episodes below .* was scored"):
        read_trajectory_log(tmp_path)
    store.write_episode(tmp_path, replace(logged[1], attempt=9))
    assert (len(read_trajectory_log(tmp_path).episodes), read_trajectory_log(tmp_path).num_unscored) == (1, 1)
    store.write_episode(tmp_path, replace(logged[1], attempt=8, provenance={"template": "chatml"}))
    with pytest.raises(UserError, match="different chat templates .None, chatml."):
        read_trajectory_log(tmp_path)


def test_ids_of_another_tokenizer_are_refused() -> None:
    policy = TrainablePolicy(loader.load_tiny(0))
    too_large = episode("a", 1.0, Outcome.SUCCESS, turn((1, 2), (3, 10**6), True))
    named = replace(episode("a", 0.0), provenance={"tokenizer": "another", "model": "qwen"})
    for refused in (too_large, named):
        with pytest.raises(UserError, match="Episode 'a' below 'somewhere' holds ids of another tokenizer"):
            log_of(refused).check_tokens(policy)
    log_of(episode("a", 1.0)).check_tokens(policy)


# -- ratios -------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_importance_weights_equal_a_computation_by_hand(logged: list[Trajectory], temperature: float) -> None:
    """A good episode logged by a surer policy, a bad one by a less sure one: ratios e^-0.3 and up to e^0.1."""
    good, bad = shifted(logged[0], 0.3, temperature), shifted(logged[1], -0.1, temperature)
    group = [replace(good, reward=1.0), replace(bad, reward=0.0)]
    settings = replace(PLAIN, objective=replace(LEASH, clip_ratio_low=0.05, clip_ratio_high=0.05))
    _, (result,) = train([group], settings)
    losses, distances = [], []
    for trajectory, advantage in zip(group, (math.sqrt(0.5), -math.sqrt(0.5)), strict=True):
        mu = np.array([v for v in trajectory.sequences()[0].logprobs if v is not None])
        pi = policy_logprobs(loader.load_tiny(0).model, trajectory, temperature)
        ratio = np.exp(pi - mu)
        losses += np.maximum(-advantage * ratio, -advantage * ratio.clip(0.95, 1.05)).tolist()
        distances += np.abs(pi - mu).tolist()
    assert result["actor/loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert result["offline/distance/mean"] == pytest.approx(np.mean(distances), abs=1e-5)
    assert 0 < result["offline/distance/mean"] <= 0.3
    assert not any(name.startswith("mismatch/") for name in result)  # no engine that could disagree
    assert "reward/mean" not in result  # a log's rewards do not rise, and nobody shall wait for it
    assert result["logged/reward/mean"] == 0.5


def test_where_the_log_is_the_policy_the_loss_is_the_plain_policy_gradient(logged: list[Trajectory]) -> None:
    group = [replace(logged[0], reward=1.0), replace(logged[1], reward=0.0)]
    _, (result,) = train([group])
    counts = [len(policy_logprobs(loader.load_tiny(0).model, trajectory)) for trajectory in group]
    assert result["offline/distance/max"] < 1e-4
    assert result["offline/bounded"] == 0.0
    expected = math.sqrt(0.5) * (counts[1] - counts[0]) / sum(counts)
    assert result["actor/loss"] == pytest.approx(expected, abs=1e-5)


def test_a_group_of_one_outcome_has_no_gradient(logged: list[Trajectory]) -> None:
    """Beside another group it changes nothing but the count of tokens."""
    no_signal = [replace(trajectory, reward=1.0) for trajectory in logged[4:8]]
    with_signal = [replace(trajectory, reward=float(n % 2)) for n, trajectory in enumerate(logged[:4])]
    settings = replace(PLAIN, train_batch_size=2)
    both, _ = train([with_signal, no_signal], settings, frozen=True)
    alone, _ = train([with_signal], replace(settings, train_batch_size=1), frozen=True)
    share = sum(len(unweighted_samples(trajectory)[0].mask.nonzero()[0]) for trajectory in with_signal) / sum(
        len(unweighted_samples(trajectory)[0].mask.nonzero()[0]) for trajectory in (*with_signal, *no_signal)
    )
    for name, value in gradient(alone).items():
        assert torch.allclose(gradient(both)[name], share * value, atol=2e-6)
    trainer, (result,) = train([no_signal], frozen=True)
    assert result["actor/loss"] == pytest.approx(0.0, abs=1e-9)
    assert all(float(value.abs().max()) < 1e-6 for value in gradient(trainer).values())
    assert max(float(value.abs().max()) for value in gradient(alone).values()) > 1e-2


def test_the_gradient_does_not_depend_on_the_split(logged: list[Trajectory]) -> None:
    groups = signal_groups(log_of(*logged))[:3]
    settings = replace(PLAIN, train_batch_size=3)
    trainer, _ = train(groups, settings, frozen=True)
    for limits in (MicroBatchLimits(tokens=128), MicroBatchLimits(samples=1), MicroBatchLimits(tokens=100_000)):
        other, _ = train(groups, settings, frozen=True, limits=limits)
        for name, value in gradient(trainer).items():
            assert torch.allclose(gradient(other)[name], value, atol=2e-6), (limits, name)


# -- the floor ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("floor", "least", "most"), [(0.7, 0.5, 0.75), (0.0, 0.0, 0.4)])
def test_failures_are_lowered_to_the_floor_and_no_further(
    floor: float, least: float, most: float, logged: list[Trajectory]
) -> None:
    """Sixty updates over one group: what is no longer rewarded stays where the floor is."""
    group = [replace(trajectory, reward=float(n == 0)) for n, trajectory in enumerate(logged[:4])]
    objective = replace(LEASH, clip_ratio_low=1 - floor, clip_ratio_high=0.2)
    trainer, _ = train([group], replace(PLAIN, total_training_steps=60, lr=3e-5, objective=objective), steps=60)
    start = loader.load_tiny(0).model
    ratios = [np.exp(policy_logprobs(trainer.policy.loaded.model, e) - policy_logprobs(start, e)) for e in group]
    assert least <= float(np.median(np.concatenate(ratios[1:]))) <= most
    assert float(np.median(ratios[0])) > 1.1


# -- missing log-probs ----------------------------------------------------------------------------------


def test_missing_log_probs_are_those_of_the_start_policy(logged: list[Trajectory]) -> None:
    messages: list[str] = []
    bare = tuple(replace(s, logprobs=None) for s in logged[0].turns[0].spans)
    provenance = {**logged[0].provenance, "temperature": 0.3}  # it has no meaning for a scripted policy
    expert = replace(logged[0], turns=(replace(logged[0].turns[0], spans=bare),), reward=1.0, provenance=provenance)
    greedy = replace(logged[1], provenance={**logged[1].provenance, "temperature": 0.0}, reward=0.0)
    nucleus = replace(logged[2], provenance={**logged[2].provenance, "top_p": 0.9}, reward=0.0)
    own = replace(logged[3], reward=0.0)
    trainer, (result,) = train([[expert, greedy, nucleus, own]], say=messages.append)
    assert len(messages) == 1
    assert messages[0].startswith("3 of 4 logged episodes lack the log-probs they were sampled with")
    assert result["offline/distance/max"] < 1e-4
    (filled,) = asyncio.run(trainer.source.collect(1)).groups
    assert filled[3] is own
    sampled = [span.logprobs for span in filled[0].turns[0].spans if span.origin is Origin.SAMPLED]
    assert np.allclose(sampled, policy_logprobs(loader.load_tiny(0).model, expert), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (replace(PLAIN, adv_estimator="gae"), "comparing the episodes of one task, which gae does not"),
        (replace(PLAIN, adv_estimator="remax"), "which remax does not; set algorithm.adv_estimator to one of grpo"),
        (replace(PLAIN, objective=replace(LEASH, loss_mode="cispo")), "cispo has no floor"),
        (replace(PLAIN, objective=POLICY_GRADIENT), "must be held near its start: set .*use_kl_loss=true"),
        (replace(PLAIN, train_batch_size=9), "fewer than the 9 of one step"),
    ],
)
def test_impossible_settings_are_refused(settings: RLSettings, message: str, logged: list[Trajectory]) -> None:
    with pytest.raises(UserError, match=message):
        train(signal_groups(log_of(*logged)), settings)


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_every_group_estimator_updates_the_policy(name: str, logged: list[Trajectory]) -> None:
    groups = signal_groups(log_of(*logged))
    _, (result,) = train(groups, replace(PLAIN, adv_estimator=name, train_batch_size=3))
    assert result["actor/grad_norm"] > 0


# -- a whole run --------------------------------------------------------------------------------


class PowerCut(Exception):
    pass


def run_to_the_end(out: Path, overrides: list[str], die_at: int | None = None) -> None:
    """A run by its configuration; a power cut in the update of a step, where one is wanted."""

    def cut_power() -> None:
        if run.state.step + 1 == die_at:
            raise PowerCut

    config = resolve_train([*overrides, f"trainer.default_local_dir={out}"]).config
    run = build.build_run(config, on_micro_batch=cut_power, say=lambda text: None)
    # An untrained model never ends a reply by itself: a letter does it here.
    run.trainer.source.agent = replace(run.trainer.source.agent, sampling=AGENT.sampling)

    async def go() -> None:
        try:
            await run.train()
        finally:
            await run.policy.close()

    asyncio.run(go())


def all_files(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name not in ("timing.jsonl", "config.yaml")
    }


@pytest.mark.parametrize("method", ["grpo", "bandit"])
def test_a_run_cut_short_and_resumed_equals_a_whole_one(method: str, folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    shutil.copytree(folder, log)
    overrides = [
        f"data.from_trajectories={log}", f"algorithm.offline.method={method}", "trainer.experiment_name=run",
        *(["algorithm.offline.top_percent=0.5"] if method == "bandit" else []),
        "actor_rollout_ref.model.path=tiny", "actor_rollout_ref.actor.optim.lr=1e-3", "data.train_batch_size=2",
        "agent.num_chains=4", "agent.max_turns=1", "agent.max_tokens_per_turn=10", "data.val_batch_size=4",
        "trainer.total_training_steps=3", "trainer.save_freq=2", "trainer.test_freq=3", "trainer.logger=[]",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1", "actor_rollout_ref.actor.kl_loss_coef=0.05",
    ]  # fmt: skip
    run_to_the_end(tmp_path / "whole", overrides)
    with pytest.raises(PowerCut):
        run_to_the_end(tmp_path / "cut", overrides, die_at=3)
    assert Checkpoints(tmp_path / "cut" / "practicum" / "run").steps()[-1] in (2, 3)
    run_to_the_end(tmp_path / "cut", overrides)
    expected, actual = all_files(tmp_path / "whole"), all_files(tmp_path / "cut")
    assert expected.keys() == actual.keys()
    assert [name for name in expected if expected[name] != actual[name]] == []
    metrics = expected["practicum/run/metrics.jsonl"].decode()
    assert ("offline/distance/mean" if method == "grpo" else "bandit/matched") in metrics
    assert "val/success/mean" in metrics
    store.write_episode(log, replace(next(store.read_episodes(folder)), attempt=99, reward=1.0))
    with pytest.raises(UserError, match="are not those this run began with"):
        run_to_the_end(tmp_path / "cut", [*overrides, "trainer.total_training_steps=7"])
