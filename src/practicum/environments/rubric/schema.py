"""Rubrics: weighted rules, optionally in stages with gates, and how their scores become one number.

A rule is a program (`CodeRule`), a question to a judge model (`JudgeRule`), or an entry of a closed menu (`MenuRule`),
the form in which a small model writes rubrics. Every rule scores an output from 0 to 1; its weight is its share.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from practicum.environments.rubric.rule_kinds import RULE_KINDS

MAX_RULES = 5000
"""Rules of a rubric; a tree of PaperBench has several hundred leaves."""
MAX_GENERATED_RULES = 40
MAX_CODE_CHARACTERS = 20_000
COMPOUND = re.compile(r"\b(?:and|as well as|both)\b|;|\((?:b|ii|2)\)", re.IGNORECASE)
"""Signs of a question that asks for several things at once."""


class RunCondition(enum.StrEnum):
    """When a rule is evaluated: at every timestep, when the workflow is complete, or both."""

    EACH_TIMESTEP = "each_timestep"
    ON_COMPLETION = "on_completion"
    BOTH = "both"

    def runs_at(self, cadence: RunCondition | None) -> bool:
        """Whether a rule runs at a cadence; None: every rule runs."""
        return cadence is None or RunCondition.BOTH in (self, cadence) or self is cadence


class Aggregation(enum.StrEnum):
    """How the scores of rules become one score."""

    WEIGHTED_AVERAGE = "weighted_average"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    HARMONIC_MEAN = "harmonic_mean"

    def apply(self, scores: Sequence[float], weights: Sequence[float]) -> float:
        """Return one score in [0, 1]. Only rules with a weight above zero count; without any, it is 0."""
        pairs = [(score, weight) for score, weight in zip(scores, weights, strict=True) if weight > 0]
        if not pairs:
            return 0.0
        total = math.fsum(weight for _, weight in pairs)
        match self:
            case Aggregation.MIN:
                return min(score for score, _ in pairs)
            case Aggregation.MAX:
                return max(score for score, _ in pairs)
            case Aggregation.PRODUCT:
                return math.prod(score for score, _ in pairs)
            case Aggregation.HARMONIC_MEAN:
                if min(score for score, _ in pairs) <= 0:
                    return 0.0
                return total / math.fsum(weight / score for score, weight in pairs)
        return math.fsum(score * weight for score, weight in pairs) / total


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Rule(_Strict):
    name: str = Field(default="", max_length=200)
    description: str = Field(default="", max_length=2000)
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    run_condition: RunCondition = RunCondition.BOTH


class CodeRule(_Rule):
    """A program that defines `evaluate(task_input: str, candidate_output: str) -> float` in [0, 1].

    It may use Python's standard library and runs in the sandbox.
    """

    type: Literal["code"] = "code"
    code: str = Field(min_length=1, max_length=MAX_CODE_CHARACTERS)


class JudgeRule(_Rule):
    """A question about an output that a judge model answers with a score."""

    type: Literal["llm_judge"] = "llm_judge"
    judge_prompt: str = Field(min_length=1, max_length=8000)
    expectation: str | None = None
    max_score: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """The judge's highest score, where the question has a scale of its own; the rule's score is the share of it."""


class MenuRule(_Rule):
    """A rule of the closed menu: a kind of `RULE_KINDS` and its parameter, which is "" where the kind takes none."""

    type: Literal["menu"] = "menu"
    kind: str
    parameter: str = Field(default="", max_length=120)

    @model_validator(mode="after")
    def _check(self) -> MenuRule:
        kind = RULE_KINDS.get(self.kind)
        if kind is None:
            raise ValueError(f"there is no rule kind '{self.kind}'; known: {', '.join(RULE_KINDS)}")
        problem = kind.parameter_problem(self.parameter)
        if problem:
            raise ValueError(f"the rule kind '{self.kind}' {problem}, got '{self.parameter}'")
        return self


Rule = Annotated[CodeRule | JudgeRule | MenuRule, Field(discriminator="type")]
GeneratedRule = Annotated[CodeRule | JudgeRule, Field(discriminator="type")]


class FailureAction(enum.StrEnum):
    """What follows when a required stage fails."""

    SKIP_REMAINING = "skip_remaining"
    ZERO_CATEGORY = "zero_category"
    CONTINUE = "continue"


class Stage(_Strict):
    """Rules with a gate: a required stage whose score is below `min_score_to_pass` has consequences.

    `min_score_to_pass` is a share of the stage's points, from 0 to 1.
    """

    name: str
    description: str = ""
    rules: tuple[Rule, ...] = Field(min_length=1, max_length=MAX_RULES)
    max_points: float = Field(default=1.0, gt=0)
    is_required: bool = True
    min_score_to_pass: float = Field(default=0.0, ge=0, le=1)
    on_failure_action: FailureAction = FailureAction.SKIP_REMAINING
    on_failure_score: float = Field(default=0.0, ge=0, le=1)


class Rubric(_Strict):
    """A rubric: rules, or stages of rules. At least one rule has a weight above zero."""

    name: str = "rubric"
    rubric_id: str = "auto_generated"
    rationale: str | None = None
    rules: tuple[Rule, ...] = Field(default=(), max_length=MAX_RULES)
    stages: tuple[Stage, ...] = Field(default=(), max_length=MAX_RULES)
    aggregation: Aggregation = Aggregation.WEIGHTED_AVERAGE

    @model_validator(mode="after")
    def _check(self) -> Rubric:
        if bool(self.rules) == bool(self.stages):
            raise ValueError("a rubric has either rules or stages")
        if not any(rule.weight > 0 for rule in self.all_rules):
            raise ValueError("no rule has a weight above zero")
        return self

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """The rules, also those of the stages, in order."""
        return self.rules or tuple(rule for stage in self.stages for rule in stage.rules)

    @property
    def num_rules(self) -> int:
        return len(self.all_rules)

    def total(self, scores: Sequence[float], cadence: RunCondition | None = None, ignore_gates: bool = False) -> float:
        """Return the rubric's score in [0, 1] from the scores of `all_rules`, in order.

        Of a staged rubric, stages without a rule at this cadence are left out: they neither pass nor fail.
        """
        if not self.stages:
            chosen = [i for i, rule in enumerate(self.rules) if rule.run_condition.runs_at(cadence)]
            return self.aggregation.apply([scores[i] for i in chosen], [self.rules[i].weight for i in chosen])
        return self._staged_total(scores, cadence, ignore_gates)

    def _staged_total(self, scores: Sequence[float], cadence: RunCondition | None, ignore_gates: bool) -> float:
        points, first, maximum = 0.0, 0, 0.0
        stopped = False
        for stage in self.stages:
            own = scores[first : first + len(stage.rules)]
            first += len(stage.rules)
            if not any(rule.run_condition.runs_at(cadence) for rule in stage.rules):
                continue
            maximum += stage.max_points
            if stopped:
                continue
            weights = [rule.weight if rule.run_condition.runs_at(cadence) else 0.0 for rule in stage.rules]
            share = self.aggregation.apply(own, weights)
            failed = stage.is_required and share < stage.min_score_to_pass and not ignore_gates
            if failed and stage.on_failure_action is FailureAction.ZERO_CATEGORY:
                return stage.on_failure_score
            if failed and stage.on_failure_action is FailureAction.SKIP_REMAINING:
                stopped = True  # the failed stage's own points are not added either
                continue
            points += share * stage.max_points
        return points / maximum if maximum else 0.0


class GeneratedRubric(_Strict):
    """What a model writes: code rules and judge rules."""

    rationale: str | None = None
    rubric_id: str = "auto_generated"
    rules: tuple[GeneratedRule, ...] = Field(min_length=1, max_length=MAX_GENERATED_RULES)

    @model_validator(mode="after")
    def _check(self) -> GeneratedRubric:
        if not any(rule.weight > 0 for rule in self.rules):
            raise ValueError("no rule has a weight above zero")
        return self

    def rubric(self, name: str = "generated") -> Rubric:
        """Return it as an executable rubric."""
        return Rubric(name=name, rubric_id=self.rubric_id, rationale=self.rationale, rules=self.rules)


def rule_label(rule: CodeRule | JudgeRule | MenuRule) -> str:
    """Return a short name of a rule for messages."""
    if isinstance(rule, MenuRule):
        return f"{rule.kind} {rule.parameter}".strip()
    return rule.name or rule.type


def is_compound(rule: CodeRule | JudgeRule | MenuRule) -> bool:
    """Whether a judge rule asks for several things at once, which a judge may grant when only half of them hold."""
    return isinstance(rule, JudgeRule) and (
        COMPOUND.search(rule.judge_prompt) is not None or rule.judge_prompt.count("?") > 1
    )
