"""Was the number right?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from practicum.environment import ToolCall
from practicum.errors import JudgeError
from practicum.rewards.base import reward

NUMBER = re.compile(
    r"(?:(?<![^\W_])(?P<sign>[-\u2212])(?:\\?\$)?)?"  # in 7-12 and A-12 it is no sign
    r"(?P<number>\d[\d,]*(?:\.\d+)?|(?<![\w.])\.\d+)"
    r"(?:[eE](?P<exponent>[-+\u2212]?\d+)(?!\w))?"
    r"(?: ?/ ?(?P<divisor>\d[\d,]*(?:\.\d+)?))?"
)
LONGEST = 1000
"""Digits of a number that is still looked at; more are a loop of the policy's, and no answer."""


def last_number(text: str | None) -> Fraction | None:
    """The last number in a text, thousands separators removed; None where there is none that can be used."""
    *_, found = None, *NUMBER.finditer(text or "")
    if found is None or len(found[0]) > LONGEST:
        return None
    exponent = int((found["exponent"] or "0").replace("\u2212", "-"))
    divisor = Fraction((found["divisor"] or "1").replace(",", ""))
    if abs(exponent) > LONGEST or not divisor:
        return None
    number = Fraction(found["number"].replace(",", "")) * Fraction(10) ** exponent / divisor
    return -number if found["sign"] else number


@reward()
def math_reward(answer_given: str | None, answer: str) -> Mapping[str, float]:
    """1 when the last number of the answer equals the gold one, else 0."""
    wanted = last_number(str(answer))
    if wanted is None:
        raise _without_number(answer)
    right = float(last_number(answer_given) == wanted)
    return {"reward": right, "success": right}


def _without_number(answer: object) -> JudgeError:
    told = "give the task one, or take another reward, such as qa_f1_reward"
    return JudgeError(f"the gold answer '{str(answer)[:80]}' has no number: {told}")


@reward()
def math_reward_string_equal(answer_given: str | None, answer: str, calls: Sequence[ToolCall]) -> Mapping[str, float]:
    """AgentFly's: nothing without a tool call; else 1 when the last whole number is right and 0.1 when not."""
    wanted = re.findall(r"-?\d+", str(answer).replace(",", ""))
    given = re.findall(r"-?\d+", (answer_given or "").replace(",", ""))
    if not wanted or len(wanted[-1]) > LONGEST:
        raise _without_number(answer)
    right = bool(given) and len(given[-1]) <= LONGEST and int(given[-1]) == int(wanted[-1])
    value = 0.0 if not calls else (1.0 if right else 0.1)
    return {"reward": value, "success": float(right and bool(calls)), "tool_used": float(bool(calls))}
