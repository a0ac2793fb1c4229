"""Rewards: the paper's worked example, what a constant earns, and that worse rubrics earn less."""

from __future__ import annotations

import asyncio
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from practicum.environments.rubric.instances import make_instance
from practicum.environments.rubric.rewards import (
    MINIMA,
    REWARDS,
    RubricComparison,
    agreement_reward,
    compute_reward,
    coverage_of,
    precision_at,
    score_agreement,
    spearman,
)
from practicum.environments.rubric.rubric_case import instance_case, menu_totals
from practicum.environments.rubric.schema import MenuRule, Rubric
from practicum.utils.seeded_random import SeededRandom


def test_the_worked_example() -> None:
    """0.72 against 0.85, one question, four of five aspects covered."""
    comparison = RubricComparison([0.72], [0.85], num_rules=5, num_questions=1, coverage=0.8)
    reward = REWARDS["composite"](comparison)
    assert {name: round(value, 3) for name, value in reward.components.items()} == {
        "alignment": -0.017,
        "quality": 0.1,
        "efficiency": -0.05,
        "coverage": 0.8,
    }
    assert round(reward.total, 3) == 0.833
    assert compute_reward(0.72, 0.85, "squared") == pytest.approx(-0.0169)
    assert compute_reward(0.72, 0.85, "l1") == compute_reward(0.72, 0.85, "l2") == pytest.approx(-0.13)


scores = st.lists(st.integers(0, 8).map(lambda value: value / 8), min_size=4, max_size=10)


@given(scores, scores)
def test_rank_correlation_is_scipys(first: list[float], second: list[float]) -> None:
    first, second = first[: len(second)], second[: len(first)]
    if min(map(np.ptp, (first, second))) == 0:
        assert spearman(first, second) == 0
    else:
        assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)


@given(st.floats(0, 1), scores)
def test_a_constant_earns_nothing_by_default(constant: float, truth: list[float]) -> None:
    assert agreement_reward(RubricComparison([constant] * len(truth), truth, 5, 0, 1.0)).total <= 1e-9
    assert score_agreement(truth, truth) == (1.0 if np.ptp(truth) else 0.0)


@given(st.data(), st.sampled_from(sorted(REWARDS)), st.sampled_from([8, 40]), st.integers(0, 4))
def test_no_valid_rubric_earns_less_than_the_minimum(
    data: st.DataObject, name: str, max_rules: int, max_questions: int
) -> None:
    truth = data.draw(scores)
    generated_scores = data.draw(
        st.lists(st.integers(0, 8).map(lambda value: value / 8), min_size=len(truth), max_size=len(truth))
    )
    num_rules, num_questions = data.draw(st.integers(1, max_rules)), data.draw(st.integers(0, max_questions))
    reward = REWARDS[name](RubricComparison(generated_scores, truth, num_rules, num_questions)).total
    assert reward >= MINIMA[name](max_rules, max_questions) - 1e-9


def test_the_minimum_is_reached_by_the_opposite_rubric() -> None:
    worst = {name: REWARDS[name](RubricComparison([1.0, 0.5, 0.0], [0.0, 0.5, 1.0], 1, 2)).total for name in REWARDS}
    assert worst == pytest.approx({name: MINIMA[name](8, 2) for name in REWARDS})


def test_precision_at_k() -> None:
    assert precision_at([0.9, 0.8, 0.1, 0.2], [1.0, 0.5, 0.4, 0.1], 2) == 1.0
    assert precision_at([0.1, 0.2, 0.8, 0.9], [1.0, 0.5, 0.4, 0.1], 2) == 0.0
    assert precision_at([0.5] * 4, [1.0, 0.5, 0.4, 0.1], 2) == 0.5, "a constant has the share of chance"


def perturbed(rubric: Rubric, steps: int, aspects: list[tuple[str, str]], random: SeededRandom) -> Rubric:
    """A ground truth with so many rules replaced by others that the stakeholder does not care about."""
    rules = list(rubric.rules)
    kinds = {(rule.kind, rule.parameter) for rule in rules if isinstance(rule, MenuRule)}
    free = [aspect for aspect in aspects if aspect not in kinds]
    for index in range(min(steps, len(rules))):
        kind, parameter = free.pop(random.below(len(free)))
        rules[index] = MenuRule(kind=kind, parameter=parameter, weight=random.between(1, 3))
    return rubric.model_copy(update={"rules": tuple(rules)})


def test_the_reward_falls_as_ground_truths_are_perturbed() -> None:
    """On average over instances, step by step; the rank correlation with the number of steps is at least 0.9."""
    steps, rewards = range(5), []
    instances = [make_instance(name, seed) for name in ("shift handover", "claims register") for seed in range(20)]
    cases = [
        (instance, asyncio.run(instance_case(instance)))
        for instance in instances
        if instance.preferences.num_rules >= 4
    ]
    for step in steps:
        values = []
        for instance, case in cases:
            random = SeededRandom(f"perturb/{instance.family.name}/{instance.number}")
            rubric = perturbed(case.ground_truth, step, list(instance.spec.aspects), random)
            pair = [menu_totals(rules, case.task_input, case.outputs) for rules in (rubric, case.ground_truth)]
            coverage = coverage_of(rubric, case.ground_truth)
            values.append(agreement_reward(RubricComparison(*pair, rubric.num_rules, 0, coverage)).total)
        rewards.append(statistics.fmean(values))
    assert rewards[0] > 0.99
    assert stats.spearmanr(list(steps), rewards).statistic <= -0.9
    assert rewards[-1] < 0.35
