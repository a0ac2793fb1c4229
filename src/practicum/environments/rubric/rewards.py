"""Rewards of a rubric writer by name: how well its rubric judges work as the ground truth does.

The paper compares one score of each rubric (`squared`, `l2`, `l1`) or adds terms for quality, efficiency and coverage
(`composite`). One number can be matched by a rubric that gives every output the same score. The default compares the
scores of several outputs of different quality: their ranks and their distances; a constant earns nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from practicum.environments.rubric.schema import Rubric, rule_label
from practicum.errors import UserError, did_you_mean

MIN_RULES, MAX_RULES = 2, 8
QUESTION_COST = 0.05
QUALITY = 0.1
CONSTANT = 1e-9


@dataclass(frozen=True, slots=True)
class RubricComparison:
    """A rubric beside the ground truth: the scores of the same outputs, and figures of the rubric itself.

    The first output is the one that the paper's scalar rewards look at.
    """

    synthetic: Sequence[float]
    ground_truth: Sequence[float]
    num_rules: int = 5
    num_questions: int = 0
    coverage: float = 0.0


@dataclass(frozen=True, slots=True)
class RubricReward:
    """A reward and its parts, which sum to it."""

    total: float
    components: Mapping[str, float]


def ranks(values: Sequence[float]) -> np.ndarray:
    """Return ranks; equal values (to 1e-9) share theirs."""
    array = np.round(np.asarray(values, dtype=np.float64), 9)
    order = np.sort(array)
    left, right = np.searchsorted(order, array, "left"), np.searchsorted(order, array, "right")
    return np.asarray((left + right - 1) / 2)


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the rank correlation; 0 where one side is constant."""
    a, b = ranks(first), ranks(second)
    a, b = a - a.mean(), b - b.mean()
    norm = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm > CONSTANT else 0.0


def l1(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the mean absolute difference."""
    return float(np.abs(np.subtract(first, second)).mean())


def l2(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the root of the mean squared difference."""
    return float(np.sqrt(np.square(np.subtract(first, second)).mean()))


def precision_at(first: Sequence[float], second: Sequence[float], k: int = 3) -> float:
    """Return the share of the first's k best that are among the second's k best; ties share their places."""

    def membership(values: Sequence[float]) -> np.ndarray:
        array = np.round(np.asarray(values, dtype=np.float64), 9)
        above = (array[None, :] > array[:, None]).sum(1)
        equal = (array[None, :] == array[:, None]).sum(1)
        return np.asarray(np.clip((k - above) / equal, 0.0, 1.0))

    return float((membership(first) * membership(second)).sum() / k)


def score_agreement(synthetic: Sequence[float], ground_truth: Sequence[float]) -> float:
    """Return 1 less the distance over that of the best constant; a constant has at most 0, nothing less than -1."""
    spread = l1([float(np.median(ground_truth))] * len(ground_truth), ground_truth)
    if spread <= CONSTANT:
        return 0.0
    return max(-1.0, 1 - l1(synthetic, ground_truth) / spread)


def coverage_of(rubric: Rubric, ground_truth: Rubric) -> float:
    """Return the share of the ground truth's rules that the rubric has, by kind and parameter or by name."""
    own = {rule_label(rule).lower() for rule in rubric.all_rules}
    expected_labels = [rule_label(rule).lower() for rule in ground_truth.all_rules]
    return sum(label in own for label in expected_labels) / len(expected_labels)


def quality_term(num_rules: int) -> float:
    """Return 0.1 for a sensible number of rules, less 0.05 for each missing or extra one."""
    distance = max(MIN_RULES - num_rules, num_rules - MAX_RULES, 0)
    return QUALITY - 0.05 * distance


def lowest_quality_term(max_rules: int) -> float:
    """Return the lowest quality term of rubrics with at most this many rules."""
    return min(quality_term(1), quality_term(max_rules))


def distance_minimum(max_rules: int, max_questions: int) -> float:
    """The minimum of `squared`, `l2` and `l1`: scores are from 0 to 1, so two differ by 1 at most."""
    return -1.0


def squared_reward(comparison: RubricComparison) -> RubricReward:
    difference = comparison.synthetic[0] - comparison.ground_truth[0]
    return _sum({"alignment": -(difference**2)})


def l2_reward(comparison: RubricComparison) -> RubricReward:
    """The norm of the difference of two scalars, which is its absolute value."""
    return _sum({"alignment": -math.hypot(comparison.synthetic[0] - comparison.ground_truth[0])})


def l1_reward(comparison: RubricComparison) -> RubricReward:
    return _sum({"alignment": -abs(comparison.synthetic[0] - comparison.ground_truth[0])})


def composite_reward(comparison: RubricComparison) -> RubricReward:
    """The paper's sum: 0.72 against 0.85, one question, 4 of 5 aspects: -0.017 + 0.1 - 0.05 + 0.8 = 0.833."""
    return _sum(
        {
            "alignment": -((comparison.synthetic[0] - comparison.ground_truth[0]) ** 2),
            "quality": quality_term(comparison.num_rules),
            "efficiency": -QUESTION_COST * comparison.num_questions,
            "coverage": comparison.coverage,
        }
    )


def composite_minimum(max_rules: int, max_questions: int) -> float:
    """The minimum of `composite`: the largest difference, the lowest quality, every question, no coverage."""
    return -1.0 + lowest_quality_term(max_rules) - QUESTION_COST * max_questions


def agreement_reward(comparison: RubricComparison) -> RubricReward:
    """The default: rank and score agreement over all outputs.

    Quality and coverage count only as far as the scores agree, so that a rubric that judges nothing earns nothing.
    """
    rank = spearman(comparison.synthetic, comparison.ground_truth)
    score = score_agreement(comparison.synthetic, comparison.ground_truth)
    alignment = 0.5 * max(rank, 0.0) + 0.3 * max(score, 0.0)
    aligned = max(0.0, min(1.0, alignment / 0.8))
    return _sum(
        {
            "rank": 0.5 * rank,
            "score": 0.3 * max(score, 0.0),
            "quality": aligned * quality_term(comparison.num_rules),
            "coverage": aligned * 0.1 * comparison.coverage,
            "efficiency": -0.4 * QUESTION_COST * comparison.num_questions,
        }
    )


def agreement_minimum(max_rules: int, max_questions: int) -> float:
    """The minimum of `agreement`, which is linear in both agreements: opposite ranks without or with full score
    agreement, or, where very many rules cost more than the agreement is worth, full agreement.
    """
    quality = lowest_quality_term(max_rules)
    lowest = min(-0.5, -0.5 + 0.3 * (1 + quality / 0.8), 0.8 + quality)
    return lowest - 0.4 * QUESTION_COST * max_questions


def _sum(components: Mapping[str, float]) -> RubricReward:
    return RubricReward(math.fsum(components.values()), components)


REWARDS: Mapping[str, Callable[[RubricComparison], RubricReward]] = {
    "agreement": agreement_reward,
    "squared": squared_reward,
    "l2": l2_reward,
    "l1": l1_reward,
    "composite": composite_reward,
}

MINIMA: Mapping[str, Callable[[int, int], float]] = {
    "agreement": agreement_minimum,
    "squared": distance_minimum,
    "l2": distance_minimum,
    "l1": distance_minimum,
    "composite": composite_minimum,
}
"""No valid rubric earns less than this, given the most rules and the most questions that an episode may have."""

SCALAR_REWARDS = ("squared", "l2", "l1", "composite")
"""Rewards that compare one score of each rubric."""


def compute_reward(
    synthetic: float | Sequence[float],
    ground_truth: float | Sequence[float],
    name: str = "composite",
    num_rules: int = 5,
    num_questions: int = 0,
    coverage: float = 0.0,
) -> float:
    """Return the reward of a name for two scores, or for the scores of several outputs."""
    first = [synthetic] if isinstance(synthetic, int | float) else list(synthetic)
    second = [ground_truth] if isinstance(ground_truth, int | float) else list(ground_truth)
    comparison = RubricComparison(first, second, num_rules, num_questions, coverage)
    return reward_named(name, len(first))(comparison).total


def reward_named(name: str, num_outputs: int) -> Callable[[RubricComparison], RubricReward]:
    """Return a reward by its name, for scores of `num_outputs` outputs."""
    if name not in REWARDS:
        raise UserError(f"There is no reward '{name}'.{did_you_mean(name, REWARDS)}")
    if name not in SCALAR_REWARDS and num_outputs < 2:
        raise UserError(
            f"The reward '{name}' compares the scores of several outputs, and there is {num_outputs}; use one of "
            f"{', '.join(SCALAR_REWARDS)}, or the environment `rubric`, which has eight."
        )
    return REWARDS[name]
