"""Settings of two evaluations that change a score without being a change of the policy: how replies are sampled."""

from __future__ import annotations

from typing import Any

from practicum.evaluation.result import EvalResult

DECODING_SETTINGS = ("temperature", "top_k", "top_p", "max_tokens", "format", "template")
"""Recorded settings that have to be equal on both sides of a comparison."""


def is_scripted(result: EvalResult) -> bool:
    """Whether the policy is the environment's expert, random or null script, which samples nothing."""
    return result.settings.get("stage") == "scripted"


def differing_settings(first: EvalResult, second: EvalResult) -> dict[str, tuple[Any, Any]]:
    """The decoding settings that both results record with different values; none where one of them is a script.

    The number of attempts is not one of them: at one temperature, a mean over four attempts can be compared with one.
    """
    if is_scripted(first) or is_scripted(second):
        return {}
    return {
        name: (first.settings[name], second.settings[name])
        for name in DECODING_SETTINGS
        if name in first.settings and name in second.settings and first.settings[name] != second.settings[name]
    }


def describe_differing(differing: dict[str, tuple[Any, Any]]) -> str:
    """`temperature 0.0 and 1.0, max_tokens 256 and 12`."""
    return ", ".join(f"{name} {_text(a)} and {_text(b)}" for name, (a, b) in differing.items())


def _text(value: Any) -> str:
    return "its own" if value is None else str(value)
