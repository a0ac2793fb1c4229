from __future__ import annotations

import pytest

from practicum import registry
from practicum.environment import ToolCall
from practicum.errors import JudgeError
from practicum.task import Task

CALLS = (ToolCall("calculator", {}),)


def score(given: str | None, gold: object, reward: str = "math_reward") -> float:
    return registry.reward(reward).score(Task("t", "math", "train", {"answer": gold}), given, CALLS).reward


@pytest.mark.parametrize(
    ("gold", "given", "right"),
    [
        ("2,002", "It is 2002.", True),
        ("12", "First 7, then **12**", True),
        ("12", "12, of 30", False),  # the last number counts
        ("1/2", "3/2", False),
        ("1/2", "0.5", True),
        ("1/2", "2 / 4", True),
        ("0.5", ".5", True),
        ("5", ".5", False),
        ("5", "It is...5", True),
        ("-0.5", "-.5", True),
        ("0.00001", "1e-05", True),
        (0.00001, "0.00001", True),
        ("2500", "2.5E3", True),
        ("5", "e5", True),
        ("-5", "-$5", True),
        ("-5", "$-5", True),
        ("-5", "\u22125", True),
        ("-5", "x=-5", True),
        ("-5", "_-5_", True),
        ("12", "7-12", True),
        ("-12", "7-12", False),
        ("19", "COVID-19", True),
        ("5", "5/0", False),
        ("5", "", False),
        ("5", None, False),
    ],
)
def test_golden(gold: object, given: str | None, right: bool) -> None:
    assert score(given, gold) == float(right)


@pytest.mark.parametrize("given", ["1" * 5000, "0" * 5000 + "5", "1/" + "3" * 5000, "1e99999999", "1e-" + "9" * 5000])
def test_a_number_without_end_is_a_wrong_answer(given: str) -> None:
    assert score(given, "5") == 0.0
    assert score(given, "5", "math_reward_string_equal") == 0.1


@pytest.mark.parametrize("reward", ["math_reward", "math_reward_string_equal"])
def test_a_gold_answer_without_a_number_is_a_judge_error(reward: str) -> None:
    with pytest.raises(JudgeError, match="the gold answer 'yes' has no number: give the task one"):
        score("yes", "yes", reward)
