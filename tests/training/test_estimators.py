"""Estimators over whole trajectories: every one credits every turn, and ReMax rolls the greedy agent out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from practicum.agent import Agent
from practicum.engines.base import Sampling
from practicum.environment import Action, Step
from practicum.environments.math import MathEnvironment
from practicum.models import loader
from practicum.training.apprentice import Apprentice
from practicum.training.estimators import ESTIMATORS, EstimatorSettings, token_rewards
from practicum.training.rl import Practice, RLSettings
from practicum.trajectory import Outcome, Trajectory

from .test_rl import episode, turn


def groups() -> Sequence[Sequence[Trajectory]]:
    short, long = [turn((1,), (2, 3), True)], [turn((1,), (2, 3), True), turn((9,), (4, 5, 6))]
    return [
        [episode("a", 1.0, Outcome.SUCCESS, *long), episode("a", 0.0, Outcome.FAILURE, *short)],
        [episode("b", 0.5, Outcome.SUCCESS, *short), episode("b", 0.0, Outcome.FAILURE, *long)],
    ]


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_one_number_a_sampled_token_in_every_turn(name: str) -> None:
    found = ESTIMATORS[name].function(groups(), EstimatorSettings(), {"a": 0.5, "b": 0.0})
    assert [[len(row) for row in rows] for rows in found] == [[5, 2], [2, 5]]
    winner, loser = found[0]
    assert winner[0] > 0  # the first turn of a success is credited, not only the last
    assert np.allclose(winner, winner[0])
    assert loser[0] < winner[0]


def test_remax_subtracts_the_greedy_reward() -> None:
    found = ESTIMATORS["remax"].function(groups(), EstimatorSettings(), {"a": 0.25, "b": 0.5})
    assert [row[0] for rows in found for row in rows] == [0.75, -0.25, 0.0, -0.5]


def test_the_baseline_variant_centres_each_group_first() -> None:
    found = ESTIMATORS["reinforce_plus_plus_baseline"].function(groups(), EstimatorSettings(), {})
    everything = np.concatenate([row for rows in found for row in rows])
    assert everything.mean() == pytest.approx(0, abs=1e-9)
    assert everything.std(ddof=1) == pytest.approx(1, abs=1e-6)
    assert found[0][0][0] / found[1][0][0] == pytest.approx(2, rel=0.5)  # a gap of 1 against a gap of ½


def test_the_reward_stands_at_the_last_sampled_token() -> None:
    assert token_rewards(groups()[0][0]).tolist() == [0, 0, 0, 0, 1]


class ByLength(MathEnvironment):
    """Pays for long answers."""

    async def step(self, action: Action) -> Step:
        return Step(reward=float(len(action.content)), terminated=True)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_each_estimator_takes_a_real_step(name: str) -> None:
    async def run() -> tuple[dict[str, float], int]:
        apprentice = Apprentice(loader.load_tiny(0))
        agent = Agent(max_turns=1, sampling=Sampling(max_tokens=12, stop=("e",)))
        settings = RLSettings(steps=1, tasks_per_step=2, chains=3, estimator=name)
        practice = Practice(apprentice, ByLength().tasks("train", 2), ByLength, agent, settings)
        metrics, episodes = await practice.step(0)
        await apprentice.close()
        return metrics, len(episodes)

    metrics, count = asyncio.run(run())
    assert count == 6  # greedy rollouts are a baseline, not data
    assert metrics["actor/grad_norm"] > 0
    assert metrics["mismatch/logprob/max"] <= 1e-4
