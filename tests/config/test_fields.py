"""Schemas: a bound on every number, a sentence on every key, one default per knob, and the page of all keys."""

from __future__ import annotations

import dataclasses
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from practicum.config.docs import COMMANDS, field_docs, groups_of, reference_page
from practicum.config.fields import Bounds, at_least, between, bounds_of, check_fields, one_of, unbounded, walk
from practicum.errors import UserError
from practicum.training.critic import CriticSettings
from practicum.training.dpo import DPOSettings
from practicum.training.estimators import EstimatorSettings
from practicum.training.learner import OptimizerSettings
from practicum.training.objective import Objective
from practicum.training.settings import CurriculumSettings, GroupFilter, RLSettings, RunSettings
from practicum.training.sft import SFTSettings

GROUPS = [(name, prefix, group) for name, schema in COMMANDS.items() for prefix, group in groups_of(schema)]


def is_number(annotation: Any) -> bool:
    """Whether a field is a number or null; a list or a mapping of numbers is not."""
    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return int in kinds or float in kinds


@pytest.mark.parametrize(("command", "prefix", "group"), GROUPS)
def test_every_number_has_bounds_or_says_that_it_has_none(command: str, prefix: str, group: type) -> None:
    hints = typing.get_type_hints(group)
    missing = [
        f"{prefix}{field.name}"
        for field in dataclasses.fields(group)
        if is_number(hints[field.name]) and bounds_of(field) is None
    ]
    assert not missing, f"practicum {command}: declare these with at_least, above, between or unbounded"


@pytest.mark.parametrize(("command", "prefix", "group"), GROUPS)
def test_every_key_says_what_it_means(command: str, prefix: str, group: type) -> None:
    docs = field_docs(group)
    keys = [field.name for key, field, _ in walk(group) if "." not in key]
    assert [key for key in keys if not docs.get(key, "").endswith(".")] == []


def test_every_default_lies_within_its_bounds() -> None:
    for schema in COMMANDS.values():
        check_fields(schema())


@dataclasses.dataclass
class Example:
    count: int = at_least(1, 2)
    share: float = between(0, 1, 0.5, includes_high=False)
    seed: int = unbounded(0)
    limit: int | None = at_least(1, None)
    action: str = one_of(("warn", "stop"), "warn")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "group.count=0: it must be at least 1."),
        ({"share": 1.0}, "group.share=1.0: it must be at least 0 and below 1."),
        ({"share": float("nan")}, "group.share=nan is not a finite number"),
        ({"limit": 0}, "group.limit=0: it must be at least 1."),
        ({"action": "stpo"}, "group.action=stpo is unknown. Did you mean 'stop'?"),
    ],
)
def test_a_number_outside_its_bounds_is_an_error_that_names_the_key(changes: dict[str, Any], message: str) -> None:
    check_fields(Example(seed=-5), "group.")
    with pytest.raises(UserError) as exc_info:
        check_fields(Example(**changes), "group.")
    assert message in str(exc_info.value)


def test_bounds_in_words() -> None:
    assert str(Bounds()) == "any number"
    assert str(Bounds(0, includes_low=False)) == "above 0"
    assert str(Bounds(0, 1)) == "at least 0 and at most 1"


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        (RLSettings(), "train"), (Objective(), "train"), (OptimizerSettings(), "train"), (GroupFilter(), "train"),
        (EstimatorSettings(), "train"), (CriticSettings(), "train"), (CurriculumSettings(), "train"),
        (RunSettings(1), "train"), (SFTSettings(), "sft"), (DPOSettings(), "dpo"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_settings_of_the_library_have_the_defaults_of_the_configuration(settings: Any, command: str) -> None:
    """Under the same names. What follows from other keys (steps, the mismatch limit) is left out."""
    keys = walk(COMMANDS[command]())
    defaults: dict[str, set[Any]] = {}
    for key, _, value in keys:
        prefix = "critic." if isinstance(settings, CriticSettings) else ""
        if key.startswith("critic.") == bool(prefix) and not key.startswith(("health.", "hacking.")):
            defaults.setdefault(key.rpartition(".")[2], set()).add(str(value))
    derived = {"total_training_steps", "mismatch_limit"}
    for field in dataclasses.fields(settings):
        if field.name in defaults and field.name not in derived:
            assert str(getattr(settings, field.name)) in defaults[field.name], field.name


def test_the_page_of_all_keys_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "config.md"
    assert page.read_text() == reference_page(), "run `python -m practicum.config.docs docs/config.md`"
