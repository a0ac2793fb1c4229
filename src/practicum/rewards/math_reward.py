"""Was the number right?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from practicum.environment import ToolCall
from practicum.rewards.base import reward

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def last_number(text: str | None) -> Fraction | None:
    """The last number in a text, thousands separators removed."""
    found = NUMBER.findall(text or "")
    return Fraction(found[-1].replace(",", "").rstrip(".")) if found else None


@reward()
def math_reward(answer_given: str | None, answer: str) -> Mapping[str, float]:
    """1 when the last number of the answer equals the gold one, else 0."""
    given = last_number(answer_given)
    right = float(given is not None and given == last_number(str(answer)))
    return {"reward": right, "success": right}


@reward()
def math_reward_string_equal(answer_given: str | None, answer: str, calls: Sequence[ToolCall]) -> Mapping[str, float]:
    """AgentFly's: nothing without a tool call; else 1 when the last whole number is right and 0.1 when not."""
    wanted = re.findall(r"-?\d+", str(answer).replace(",", ""))
    given = re.findall(r"-?\d+", (answer_given or "").replace(",", ""))
    right = bool(wanted and given and int(given[-1]) == int(wanted[-1]))
    value = 0.0 if not calls else (1.0 if right else 0.1)
    return {"reward": value, "success": float(right and bool(calls)), "tool_used": float(bool(calls))}
