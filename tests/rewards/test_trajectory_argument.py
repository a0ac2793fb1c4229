"""Rewards and environments that ask for `trajectory` see the whole episode, in training, evaluation and collection."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import practicum
from practicum import Action, Environment, Message, Observation, Step, Task, Trajectory
from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.config.resolve import resolve_train
from practicum.data.store import read_episode
from practicum.engines.scripted import ScriptedEngine
from practicum.errors import JudgeError
from practicum.models import loader
from practicum.registry import make_format
from practicum.rewards.base import reward
from practicum.rollout import run_episode
from practicum.training.build import build_run
from practicum.trajectory import Attempt, Outcome, Seeds

REWARDS = """
from practicum import Trajectory, reward

def seen(answer_given, trajectory):
    last = trajectory.turns[-1]
    assert isinstance(trajectory, Trajectory) and last.reward == 0.0
    own = answer_given is None or answer_given in last.reply
    return {"reward": 1.0, "turns": len(trajectory.turns), "own": own,
            "tokens": sum(turn.num_sampled for turn in trajectory.turns), "finished": trajectory.scored}

@reward
def plain(answer_given, trajectory):
    return seen(answer_given, trajectory)

@reward
async def awaited(answer_given, trajectory):
    return seen(answer_given, trajectory)
"""


@pytest.fixture(params=["plain", "awaited"])
def reward_name(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    (tmp_path / "seen.py").write_text(REWARDS)
    return f"{tmp_path}/seen.py:{request.param}"


def check(episode: Trajectory) -> None:
    assert episode.scored, episode.error
    assert episode.components["turns"] == len(episode.turns)
    assert episode.components["tokens"] == sum(turn.num_sampled for turn in episode.turns)
    assert episode.components["own"] == 1.0
    assert episode.components["finished"] == 0.0


def test_in_training(tmp_path: Path, reward_name: str) -> None:
    episodes: list[Trajectory] = []
    config = resolve_train(
        [
            "agent.environment=math", f"agent.reward_name={reward_name}", "agent.max_turns=2",
            "agent.max_tokens_per_turn=6", "algorithm.adv_estimator=grpo", "actor_rollout_ref.model.path=tiny",
            "data.train_batch_size=2", "agent.num_chains=2", "trainer.total_training_steps=1",
            "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.logger=[]",
            f"trainer.default_local_dir={tmp_path}",
        ]
    ).config  # fmt: skip

    async def run_it() -> None:
        run = build_run(config, on_episode=episodes.append, say=lambda text: None)
        await run.train()
        await run.policy.close()

    asyncio.run(run_it())
    assert len(episodes) == 4
    for episode in episodes:
        check(episode)


def test_in_evaluation_and_collection(tmp_path: Path, reward_name: str) -> None:
    options: dict[str, Any] = {
        "environment": "math", "environment_options": {"reward": reward_name}, "num_tasks": 2, "policy": "expert",
    }  # fmt: skip
    result = practicum.evaluate(practicum.EvalSettings(**options), progress=False)
    assert [attempt.components["turns"] for attempt in result.attempts] == [a.turns for a in result.attempts]
    settings = practicum.CollectSettings(**options, out=tmp_path / "out")
    collected = practicum.collect(settings, progress=False, log=lambda text: None)
    episodes = [read_episode(path) for path in collected.rows]
    assert len(episodes) == 2
    for episode in episodes:
        check(episode)


class Counting(Environment):
    """Two turns; the reward of a step is the number of turns in the record."""

    name = "counting"

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation((Message("user", "say a"),))

    def step(self, action: Action, trajectory: Trajectory | None = None) -> Step:  # type: ignore[override]
        assert trajectory is not None
        assert trajectory.turns[-1].action.content == action.content
        return Step(Observation((Message("user", "again"),)), reward=len(trajectory.turns))

    async def truncate(self, trajectory: Trajectory | None = None) -> Step:
        assert trajectory is not None
        return Step(truncated=True, reward=10.0 * trajectory.reward)


class CountingMore(Counting):
    async def step(self, action: Action, trajectory: Trajectory | None = None) -> Step:  # type: ignore[override]
        return await super().step(action, trajectory)  # type: ignore[misc, no-any-return]


@pytest.mark.parametrize("environment", [Counting, CountingMore])
def test_an_environment_asks_for_it_too(environment: type[Environment]) -> None:
    loaded = loader.load("tiny")
    renderer = Renderer(loaded.tokenizer, None, loaded.end_ids)
    engine = ScriptedEngine.of("null", environment(), make_format("hf"), renderer)
    attempt = Attempt(Task("t", "counting", "train", {}), 0, Seeds(1, 2))
    episode = asyncio.run(run_episode(attempt, environment, Agent(max_turns=2), engine, renderer))
    assert episode.outcome is Outcome.TRUNCATED, episode.error
    assert [turn.reward for turn in episode.turns] == [1.0, 2.0 + 30.0]


def test_in_a_mix_and_from_no_field_of_the_task(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(REWARDS)
    (tmp_path / "own.json").write_text('[{"question": "2 + 2", "answer": "4", "trajectory": "a field"}]')
    member = {"reward": f"{tmp_path}/seen.py:plain", "files": {"test": f"{tmp_path}/own.json"}}
    settings = practicum.EvalSettings(
        environment="mix", environment_options={"environments": {"math": member}}, num_tasks=1, policy="null"
    )
    (attempt,) = practicum.evaluate(settings, progress=False).attempts
    assert attempt.error is None
    assert attempt.components["turns"] == 1


def test_outside_of_an_episode_there_is_none() -> None:
    function = reward(lambda answer_given, trajectory: 1.0)
    with pytest.raises(JudgeError, match="'trajectory', which only a running episode has"):
        function.score(Task("t", "tools", "train", {"trajectory": "a field"}), "4", ())
