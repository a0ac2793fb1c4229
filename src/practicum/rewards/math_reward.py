"""Rewards of numeric answers: the last number of the answer against the gold answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from practicum.environment import ToolCall
from practicum.errors import JudgeError
from practicum.rewards.base import reward

NUMBER = re.compile(
    r"(?:(?<![^\W_])(?P<sign>[-\u2212])(?:\\?\$)?)?"  # in 7-12 and A-12 it is not a sign
    r"(?P<number>\d[\d,]*(?:\.\d+)?|(?<![\w.])\.\d+)"
    r"(?:[eE](?P<exponent>[-+\u2212]?\d+)(?!\w))?"
    r"(?: ?/ ?(?P<divisor>\d[\d,]*(?:\.\d+)?))?"
)
MAX_DIGITS = 1000
"""Longest number that counts as an answer; longer ones come from a policy that repeats itself."""


def last_number(text: str | None) -> Fraction | None:
    """Return the last number of a text, without thousands separators; None if there is none that can be used."""
    *_, match = None, *NUMBER.finditer(text or "")
    if match is None or len(match[0]) > MAX_DIGITS:
        return None
    exponent = int((match["exponent"] or "0").replace("\u2212", "-"))
    divisor = Fraction((match["divisor"] or "1").replace(",", ""))
    if abs(exponent) > MAX_DIGITS or not divisor:
        return None
    number = Fraction(match["number"].replace(",", "")) * Fraction(10) ** exponent / divisor
    return -number if match["sign"] else number


@reward()
def math_reward(answer_given: str | None, answer: str) -> Mapping[str, float]:
    """Return 1 if the last number of the answer equals the gold one, else 0."""
    gold = last_number(str(answer))
    if gold is None:
        raise _without_number(answer)
    right = float(last_number(answer_given) == gold)
    return {"reward": right, "success": right}


def _without_number(answer: object) -> JudgeError:
    advice = "give the task one, or take another reward, such as qa_f1_reward"
    return JudgeError(f"the gold answer '{str(answer)[:80]}' has no number: {advice}")


@reward()
def math_reward_string_equal(answer_given: str | None, answer: str, calls: Sequence[ToolCall]) -> Mapping[str, float]:
    """AgentFly's reward: 0 without a tool call; else 1 if the last integer is right and 0.1 if not."""
    gold = re.findall(r"-?\d+", str(answer).replace(",", ""))
    answer_numbers = re.findall(r"-?\d+", (answer_given or "").replace(",", ""))
    if not gold or len(gold[-1]) > MAX_DIGITS:
        raise _without_number(answer)
    right = bool(answer_numbers) and len(answer_numbers[-1]) <= MAX_DIGITS and int(answer_numbers[-1]) == int(gold[-1])
    value = 0.0 if not calls else (1.0 if right else 0.1)
    return {"reward": value, "success": float(right and bool(calls)), "tool_used": float(bool(calls))}
