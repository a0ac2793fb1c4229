"""Golden values of specs A.4, by hand."""

from __future__ import annotations

import pytest

from practicum.algorithms.advantages import grpo


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
