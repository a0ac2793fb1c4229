"""Settings of two evaluations that change a score without being a change of the policy: sampling, tools, roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from practicum.evaluation.result import EvalResult

DECODING_SETTINGS = ("temperature", "top_k", "top_p", "max_tokens", "template")
"""Recorded settings that have to be equal on both sides of a comparison."""
MIN_P = "min_p"
FORMAT = "format"
RESPONSE_FORMAT = "response_format"

Differing = dict[str, tuple[Any, Any]]
"""Values of both sides by the name of the setting."""


def is_scripted(result: EvalResult) -> bool:
    """Whether the policy is the environment's expert, random or null script, which samples nothing."""
    return result.settings.get("stage") == "scripted"


def differing_settings(first: EvalResult, second: EvalResult) -> Differing:
    """The decoding settings, and the models that score, that both results record with different values.

    There are none where one of them is a script. The number of attempts is not one of them: at one temperature, a mean
    over four attempts can be compared with one.
    """
    if is_scripted(first) or is_scripted(second):
        return {}
    differences = _differing(first.settings, second.settings, DECODING_SETTINGS)
    shares = (first.settings.get(MIN_P, 0.0), second.settings.get(MIN_P, 0.0))
    if shares[0] != shares[1]:
        differences[MIN_P] = shares
    return {**differences, **_differing_roles(first, second, True)}


def differing_agent_settings(first: EvalResult, second: EvalResult) -> Differing:
    """Format, options of the agent and policies of roles that differ; none where one of the two is a script."""
    if is_scripted(first) or is_scripted(second):
        return {}
    before, after = agent_options(first), agent_options(second)
    differences = _differing(first.settings, second.settings, (FORMAT,))
    forms = (first.settings.get(RESPONSE_FORMAT), second.settings.get(RESPONSE_FORMAT))
    if forms[0] != forms[1]:
        differences[RESPONSE_FORMAT] = forms
    if before is not None and after is not None:
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        differences |= {name: (before.get(name), after.get(name)) for name in names}
    return {**differences, **_differing_roles(first, second, False)}


def agent_options(result: EvalResult) -> dict[str, Any] | None:
    """All options of a result by name; None where it records none.

    On one panel the options of the task are the same, so what differs is the agent's. Older results have both together.
    """
    if "rules" not in result.settings:
        return None
    options = _mapping(_mapping(result.settings["rules"]).get("options"))
    return {**options, **_mapping(result.settings.get("agent_options"))}


def describe_differing(differing: Differing) -> str:
    """`temperature 0.0 and 1.0, max_tokens 256 and 12`."""
    return ", ".join(f"{name} {_text(a)} and {_text(b)}" for name, (a, b) in differing.items())


def _differing(first: Any, second: Any, names: tuple[str, ...]) -> Differing:
    return {
        name: (first[name], second[name])
        for name in names
        if name in first and name in second and first[name] != second[name]
    }


def _differing_roles(first: EvalResult, second: EvalResult, asked: bool) -> Differing:
    """Roles with another policy: either models that the environment calls, or roles that act."""
    before, after = (_mapping(result.settings.get("roles")) for result in (first, second))
    names_asked = {name for result in (first, second) for name in result.settings.get("asked_models") or ()}
    return {
        f"role {name}": (before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name) and (name in names_asked) == asked
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    """A mapping of a result file, which may come from anywhere."""
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return "the default" if value is None else str(value)
