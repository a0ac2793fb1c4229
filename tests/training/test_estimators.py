"""Estimators over whole trajectories: every one credits every turn, and ReMax rolls the greedy agent out."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from practicum.agent import Agent
from practicum.engines.base import Sampling
from practicum.environment import Action, Step
from practicum.environments.math import MathEnvironment
from practicum.models import loader
from practicum.training.estimators import (
    ESTIMATORS,
    Advantages,
    EstimatorSettings,
    OverlongBuffer,
    TokenRewards,
    token_rewards,
)
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import OnlineSource
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Outcome, Trajectory
from tests.training.settings import policy_gradient, rl_settings

from .test_rl_trainer import episode, turn


def groups() -> list[list[Trajectory]]:
    short, long = [turn((1,), (2, 3), True)], [turn((1,), (2, 3), True), turn((9,), (4, 5, 6))]
    return [
        [episode("a", 1.0, Outcome.SUCCESS, *long), episode("a", 0.0, Outcome.FAILURE, *short)],
        [episode("b", 0.5, Outcome.SUCCESS, *short), episode("b", 0.0, Outcome.FAILURE, *long)],
    ]


def rated(settings: EstimatorSettings, greedy: tuple[float, float] = (0.5, 0.0)) -> list[list[TokenRewards]]:
    """Rewards on tokens, a critic that says 0.4 everywhere, and greedy rewards of both groups."""
    return [
        [replace(item, values=np.full(len(item.rewards), 0.4), last_value=0.9, greedy_reward=base) for item in items]
        for items, base in (([token_rewards(e, settings) for e in g], b) for g, b in zip(groups(), greedy, strict=True))
    ]


def credit(
    name: str, settings: EstimatorSettings | None = None, greedy: tuple[float, float] = (0.5, 0.0)
) -> Advantages:
    settings = settings or EstimatorSettings()
    return ESTIMATORS[name].function(rated(settings, greedy), settings)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_one_number_a_sampled_token_in_every_turn(name: str) -> None:
    result = credit(name).advantages
    assert [[len(row) for row in rows] for rows in result] == [[5, 2], [2, 5]]
    winner, loser = result[0]
    assert winner[0] > 0  # the first turn of a success is credited, not only the last
    assert np.allclose(winner, winner[0])
    assert loser[0] < winner[0]


def test_remax_subtracts_the_greedy_reward() -> None:
    result = credit("remax", greedy=(0.25, 0.5)).advantages
    assert [row[0] for rows in result for row in rows] == [0.75, -0.25, 0.0, -0.5]


def test_the_baseline_variant_centres_each_group_first() -> None:
    result = credit("reinforce_plus_plus_baseline").advantages
    values = np.concatenate([row for rows in result for row in rows])
    assert values.mean() == pytest.approx(0, abs=1e-9)
    assert values.std(ddof=1) == pytest.approx(1, abs=1e-6)
    assert result[0][0][0] / result[1][0][0] == pytest.approx(2, rel=0.5)  # a gap of 1 against a gap of ½


@pytest.mark.parametrize("name", ["grpo", "flow_grpo"])
def test_the_division_can_be_left_out(name: str) -> None:
    group = [TokenRewards(np.array([0.0, reward]), np.array([0, 1])) for reward in (1.0, 0.0, 0.0, 1.0)]
    result = ESTIMATORS[name].function([group], EstimatorSettings(norm_adv_by_std_in_grpo=False)).advantages[0]
    assert [row.tolist() for row in result] == [[0.5] * 2, [-0.5] * 2, [-0.5] * 2, [0.5] * 2]


def test_flow_grpo_discounts_by_turns() -> None:
    """Both are solved, in one turn and in three: with γ=.5 they are worth 1 and .25, so ±.375 around the mean."""
    short = TokenRewards(np.array([0.0, 1.0]), np.array([0, 0]))
    long = TokenRewards(np.array([0.0, 0.0, 1.0]), np.array([0, 1, 2]))
    settings = EstimatorSettings(gamma=0.5, norm_adv_by_std_in_grpo=False)
    result = ESTIMATORS["flow_grpo"].function([[short, long]], settings).advantages[0]
    assert [row.tolist() for row in result] == [[0.375] * 2, [-0.375] * 3]
    undiscounted = ESTIMATORS["flow_grpo"].function([[short, long]], EstimatorSettings()).advantages[0]
    assert [row.tolist() for row in undiscounted] == [[0.0] * 2, [0.0] * 3]


def test_the_reward_is_on_the_last_sampled_token() -> None:
    assert token_rewards(groups()[0][0], EstimatorSettings()).rewards.tolist() == [0, 0, 0, 0, 1]


def test_turn_rewards_are_on_the_last_token_of_their_turn() -> None:
    first, second = turn((1,), (2, 3), True), turn((9,), (4, 5, 6))
    paid = episode("a", 3.0, Outcome.SUCCESS, replace(first, reward=1.0), replace(second, reward=2.0))
    result = token_rewards(paid, EstimatorSettings(turn_rewards=True))
    assert result.rewards.tolist() == [0, 1, 0, 0, 2]
    assert result.turns.tolist() == [0, 0, 1, 1, 1]


def test_gae_over_turns_by_hand() -> None:
    """Turn rewards 1 and 2, values .4 at both beginnings, γ=.5, λ=1: A₁ = 1.6, A₀ = 1+.2-.4+.8 = 1.6; then B's one."""
    settings = EstimatorSettings(gamma=0.5, turn_rewards=True)
    two_turns = TokenRewards(np.array([0, 1.0, 0, 2.0]), np.array([0, 0, 1, 1]), values=np.array([0.4, 9, 0.4, 9]))
    one_turn = TokenRewards(np.array([0.0]), np.array([0]), values=np.array([0.4]))
    result = ESTIMATORS["turn_gae"].function([[two_turns, one_turn]], settings)
    assert result.returns is not None
    assert np.allclose(result.returns[0][0], [2.0, np.nan, 2.0, np.nan], equal_nan=True)
    mean, deviation = np.mean([1.6] * 4 + [-0.4]), np.std([1.6] * 4 + [-0.4], ddof=1)
    assert np.allclose(result.advantages[0][0], (1.6 - mean) / deviation)
    assert np.allclose(result.advantages[0][1], (-0.4 - mean) / deviation)


@pytest.mark.parametrize("name", ["gae", "turn_gae"])
def test_only_truncated_episodes_are_bootstrapped(name: str) -> None:
    settings = EstimatorSettings(bootstrap_truncated=True)

    def last_return(truncated: bool, bootstrap: bool = True) -> float:
        item = TokenRewards(np.array([0.0]), np.array([0]), truncated, np.array([0.4]), 0.9)
        result = ESTIMATORS[name].function([[item]], replace(settings, bootstrap_truncated=bootstrap)).returns
        assert result is not None
        return float(result[0][0][0])

    assert last_return(truncated=True) == pytest.approx(0.9)
    assert last_return(truncated=False) == 0.0
    assert last_return(truncated=True, bootstrap=False) == 0.0


class ByLength(MathEnvironment):
    """Pays for long answers."""

    async def step(self, action: Action) -> Step:
        return Step(reward=float(len(action.content)), terminated=True)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_each_estimator_takes_a_real_step(name: str) -> None:
    async def run() -> tuple[dict[str, float], int]:
        policy = TrainablePolicy(loader.load_tiny(0))
        agent = Agent(max_turns=1, sampling=Sampling(max_tokens=12, stop=("e",)))
        settings = rl_settings(total_training_steps=1, train_batch_size=2, num_chains=3, adv_estimator=name)
        trainer = RLTrainer(
            policy, OnlineSource(policy, ByLength().tasks("train", 2), ByLength, agent, settings), settings
        )
        metrics, episodes = await trainer.step(0)
        await policy.close()
        return metrics, len(episodes)

    metrics, count = asyncio.run(run())
    assert count == 6  # greedy rollouts are a baseline, not data
    assert metrics["actor/grad_norm"] > 0
    assert metrics["mismatch/logprob/max"] <= 1e-4


def test_replies_near_their_limit_cost_reward_as_in_dapo() -> None:
    """DAPO, equation 13: 0 up to the buffer, then linearly to -1 at the limit."""
    buffer = OverlongBuffer(4, 1.0, max_tokens=10)
    assert [buffer.penalty(length) for length in (1, 6, 7, 8, 10)] == [0.0, 0.0, -0.25, -0.5, -1.0]
    two_turns = episode("a", 1.0, Outcome.SUCCESS, turn((1,), (2, 3), True), turn((9,), (4, 5, 6)))
    tight = OverlongBuffer(2, 0.5, max_tokens=3)  # replies of 2 and 3 tokens cost 0.25 and 0.5
    full = token_rewards(two_turns, EstimatorSettings(overlong_buffer=tight)).rewards
    assert full.tolist() == [0.0, 0.0, 0.0, 0.0, 0.25]
    by_turn = token_rewards(two_turns, EstimatorSettings(turn_rewards=True, overlong_buffer=tight)).rewards
    assert by_turn.tolist() == [0.0, -0.25, 0.0, 0.0, -0.5]


def test_gspo_averages_by_sequence_unless_told_otherwise() -> None:
    settings = rl_settings(objective=policy_gradient(loss_mode="gspo"))
    assert settings.loss_aggregation == "seq-mean-token-mean"
    assert replace(settings, loss_agg_mode="token-mean").loss_aggregation == "token-mean"
    assert rl_settings().loss_aggregation == "token-mean"
