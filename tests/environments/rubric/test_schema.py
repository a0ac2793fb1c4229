"""Rubrics: validation, aggregations, stages with gates, run conditions, the menu form and the short form."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from practicum.environments.rubric.families.catalogue import FAMILIES, families_of
from practicum.environments.rubric.instances import make_instance
from practicum.environments.rubric.menu import Question, UnreadableReply, parse_reply, parse_rubric, rubric_text
from practicum.environments.rubric.rule_kinds import RULE_KINDS
from practicum.environments.rubric.schema import (
    Aggregation,
    FailureAction,
    JudgeRule,
    MenuRule,
    Rubric,
    RunCondition,
    Stage,
    is_compound,
)
from practicum.environments.rubric.short_form import Legend

LEGEND = Legend(make_instance("budget report", 0).spec)


def rule(weight: float = 1.0, condition: RunCondition = RunCondition.BOTH) -> MenuRule:
    return MenuRule(kind="mention", parameter="word", weight=weight, run_condition=condition)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("weighted_average", 0.75), ("min", 0.5), ("max", 1.0), ("product", 0.5), ("harmonic_mean", 2 / 3)],
)
def test_aggregations(aggregation: str, expected: float) -> None:
    assert Aggregation(aggregation).apply([0.5, 1.0, 0.0], [1, 1, 0]) == pytest.approx(expected)


def rubric_of_stages(action: FailureAction, score: float = 0.0) -> Rubric:
    gate = Stage(
        name="gate", rules=(rule(),), max_points=2, min_score_to_pass=0.6, on_failure_action=action,
        on_failure_score=score,
    )  # fmt: skip
    return Rubric(stages=(gate, Stage(name="rest", rules=(rule(), rule(3)), max_points=8)))


def test_stages_and_their_gates() -> None:
    """The gate's threshold is a share of its points, also where it has two of them."""
    for action in FailureAction:
        assert rubric_of_stages(action).total([0.6, 1.0, 0.0]) == pytest.approx((1.2 + 2) / 10)
    failed = [0.5, 1.0, 1.0]
    assert rubric_of_stages(FailureAction.ZERO_CATEGORY, 0.1).total(failed) == 0.1
    assert rubric_of_stages(FailureAction.SKIP_REMAINING).total(failed) == 0.0
    assert rubric_of_stages(FailureAction.CONTINUE).total(failed) == pytest.approx(0.9)
    assert rubric_of_stages(FailureAction.ZERO_CATEGORY).total(failed, ignore_gates=True) == pytest.approx(0.9)


def test_run_conditions() -> None:
    rubric = Rubric(rules=(rule(1, RunCondition.EACH_TIMESTEP), rule(1, RunCondition.ON_COMPLETION)))
    assert rubric.total([1.0, 0.0], RunCondition.EACH_TIMESTEP) == 1.0
    assert rubric.total([1.0, 0.0], RunCondition.ON_COMPLETION) == 0.0
    assert rubric.total([1.0, 0.0]) == 0.5


def test_a_stage_without_a_rule_at_this_cadence_neither_passes_nor_fails() -> None:
    late_stage = Stage(
        name="late", rules=(rule(1, RunCondition.ON_COMPLETION),), max_points=2, min_score_to_pass=0.6,
        on_failure_action=FailureAction.ZERO_CATEGORY,
    )  # fmt: skip
    rubric = Rubric(stages=(late_stage, Stage(name="rest", rules=(rule(),), max_points=8)))
    assert rubric.total([0.0, 0.5], RunCondition.EACH_TIMESTEP) == 0.5
    assert rubric.total([0.0, 0.5], RunCondition.ON_COMPLETION) == 0.0
    assert Rubric(stages=(late_stage,)).total([1.0], RunCondition.EACH_TIMESTEP) == 0.0


@pytest.mark.parametrize(
    "fields",
    [
        {"rules": ()},
        {"rules": (rule(0),)},
        {"rules": (rule(),), "stages": (Stage(name="s", rules=(rule(),)),)},
        {"rules": [{"type": "menu", "kind": "words", "parameter": "many"}]},
        {"rules": [{"type": "menu", "kind": "wards", "parameter": "3"}]},
        {"rules": [{"type": "code", "code": "x", "weight": -1}]},
        {"rules": [{"type": "code", "code": "x", "weight": float("nan")}]},
    ],
)
def test_invalid_rubrics_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Rubric.model_validate(fields)


def test_compound_criteria_are_found() -> None:
    for text in (
        "Is it short and polite?", "Is it short? Is it polite?", "(a) It is short, (b) it is polite.",
        "It is short; it is polite.", "It is short as well as polite.",
    ):  # fmt: skip
        assert is_compound(JudgeRule(judge_prompt=text)), text
    for text in ("Is it short?", "Is the standard met, as agreed?"):
        assert not is_compound(JudgeRule(judge_prompt=text)), text


def test_the_menu_form_reads_what_it_writes() -> None:
    for family in FAMILIES.values():
        for text in family.rubrics.values():
            assert rubric_text(parse_rubric(text)) == text
    assert parse_reply("ask wording") == Question("wording")
    for text in ("", "ask", "ask money", "total revenue", "total revenue 4", "words many 2", "complete all 1", "a; b"):
        with pytest.raises(UnreadableReply):
            parse_reply(text)


@given(st.integers(0, 40), st.sampled_from(sorted(FAMILIES)), st.integers(1, 3))
def test_the_short_form_reads_what_it_writes(number: int, family: str, level: int) -> None:
    instance = make_instance(family, number, level)
    legend = Legend(instance.spec)
    parsed = legend.parse(legend.text(instance.preferences))
    assert isinstance(parsed, Rubric)
    assert parsed.rules == instance.preferences.rules


@given(st.text(max_size=80))
def test_any_reply_is_read_or_refused(text: str) -> None:
    for parse in (parse_reply, LEGEND.parse):
        with contextlib.suppress(UnreadableReply):
            assert isinstance(parse(text), Rubric | Question)


def test_there_are_enough_families_and_hand_written_rubrics() -> None:
    assert len(FAMILIES) >= 12
    assert len({family.field for family in FAMILIES.values()}) >= 4
    assert sum(len(family.rubrics) for family in FAMILIES.values()) >= 20
    assert {"train", "val", "test"} == {family.split for family in FAMILIES.values()}
    fields_of_train = {family.field for family in families_of("train")}
    assert {family.field for family in families_of("test")} - fields_of_train, "a whole field is held out"
    written = {r.kind for f in FAMILIES.values() for t in f.rubrics.values() for r in parse_rubric(t).rules}  # type: ignore[union-attr]
    assert written == set(RULE_KINDS)
