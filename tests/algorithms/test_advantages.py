"""Golden values of the advantage estimators, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from practicum.algorithms.advantages import (
    discounted_return,
    flow_grpo,
    gae,
    grpo,
    reinforce_plus_plus,
    remax,
    returns_to_go,
    rloo,
    whiten,
)


def test_grpo_golden() -> None:
    assert grpo([1, 0, 0, 1]) == pytest.approx([0.866024, -0.866024, -0.866024, 0.866024], abs=1e-6)


def test_grpo_without_division_only_centres() -> None:
    assert grpo([1, 0, 0, 1], normalise=False) == [0.5, -0.5, -0.5, 0.5]


def test_a_group_of_one_is_plain_reinforce() -> None:
    assert grpo([0.7]) == [0.7]


def test_equal_rewards_say_nothing() -> None:
    assert grpo([0.3, 0.3, 0.3]) == pytest.approx([0, 0, 0], abs=1e-9)


def test_empty_group() -> None:
    assert grpo([]) == []


def test_rloo_golden() -> None:
    assert rloo([1, 0, 0, 1]) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert rloo([3, 0, 0]) == pytest.approx([3, -1.5, -1.5])  # against the mean of the others
    assert rloo([0.4]) == [0.4]


def test_remax_is_against_the_greedy_rollout() -> None:
    assert remax(np.array([0.0, 1.0]), 0.25).tolist() == [0.75, 0.75]
    assert remax(np.array([1.0, 2.0]), 0.25).tolist() == [2.75, 1.75]  # returns to go


def test_returns_are_carried_to_the_first_turn() -> None:
    assert returns_to_go(np.array([0.0, 0.0, 0.0, 1.0]), 1.0).tolist() == [1, 1, 1, 1]
    assert returns_to_go(np.array([0.0, 1.0, 0.0, 2.0]), 0.5).tolist() == [0.75, 1.5, 1.0, 2.0]


def test_whitening_is_global_and_guarded() -> None:
    rows = whiten([np.array([1.0, 2.0]), np.array([3.0])])
    assert np.concatenate(rows).tolist() == pytest.approx([-1, 0, 1], abs=1e-6)
    assert whiten([np.array([5.0])])[0].tolist() == [0.0]
    assert whiten([]) == []


def test_reinforce_plus_plus_golden() -> None:
    # Returns [1, 1] and [0]: mean 2/3, unbiased variance 1/3.
    good, bad = reinforce_plus_plus([np.array([0.0, 1.0]), np.array([0.0])])
    assert good.tolist() == pytest.approx([0.57735, 0.57735], abs=1e-5)
    assert bad.tolist() == pytest.approx([-1.154701], abs=1e-5)


def test_gae_golden() -> None:
    result, returns = gae(np.array([0, 0, 1.0]), np.array([0.5, 0.5, 0.5]), 1.0, 1.0)
    assert result.tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert returns.tolist() == pytest.approx([1, 1, 1])


def test_gae_across_an_observation() -> None:
    """With the mask [1,0,0,1] the observation's tokens are not in the list, so their values play no part."""
    result, _ = gae(np.array([0, 1.0]), np.array([0.2, 0.4]), 0.5, 1.0)
    assert result.tolist() == pytest.approx([0.3, 0.6])


def test_gae_bootstraps_what_was_cut_off() -> None:
    """r = [0, 0], V = [1, 2], γ = .9, λ = .5, V beyond = 3: δ₁ = .7, δ₀ = .8, A₀ = .8 + .45·.7."""
    result, returns = gae(np.array([0, 0.0]), np.array([1, 2.0]), 0.9, 0.5, bootstrap=3.0)
    assert result.tolist() == pytest.approx([0.8 + 0.45 * 0.7, 0.7])
    assert returns.tolist() == pytest.approx([1.8 + 0.45 * 0.7, 2.7])


def test_flow_grpo_over_trajectories_and_over_rows() -> None:
    rewards, turns = [1.0, 0.0, 0.0, 1.0], [1, 3, 2, 2]
    assert flow_grpo(rewards, turns) == pytest.approx([0.866024, -0.866024, -0.866024, 0.866024], abs=1e-5)
    rows = [1.0, 0, 0, 0, 0, 0, 1, 1]  # eight rows, mean 3/8
    deviation = float(np.std(rows, ddof=1))
    expected = [(reward - 0.375) / (deviation + 1e-6) for reward in rewards]
    assert flow_grpo(rewards, turns, row_weighted=True) == pytest.approx(expected)


def test_flow_grpo_without_division_only_centres() -> None:
    rewards, turns = [1.0, 0.0, 0.0, 1.0], [1, 3, 2, 2]
    assert flow_grpo(rewards, turns, normalise=False) == [0.5, -0.5, -0.5, 0.5]
    assert flow_grpo(rewards, turns, row_weighted=True, normalise=False) == [0.625, -0.375, -0.375, 0.625]


def test_a_discounted_return_by_hand() -> None:
    """1 + ½·2 + ¼·4 = 3."""
    assert discounted_return(np.array([1.0, 2.0, 4.0]), 0.5) == 3.0
    assert discounted_return(np.array([0.0, 0.0, 1.0]), 0.99) == pytest.approx(0.9801)
