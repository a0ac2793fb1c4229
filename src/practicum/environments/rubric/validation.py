"""`ValidationEngine`: scores the outputs of a workflow by rubrics."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from practicum.environment import ChatModel
from practicum.environments.rubric.code_rules import CodeRuleRunner, RuleScore
from practicum.environments.rubric.judge_rules import score_by_judge
from practicum.environments.rubric.rule_kinds import RULE_KINDS
from practicum.environments.rubric.schema import CodeRule, JudgeRule, MenuRule, Rubric, RunCondition, rule_label
from practicum.environments.rubric.workflow import ManagerAction, Workflow, WorkflowMessage
from practicum.errors import UserError

NO_JUDGE = "there is no judge"


@dataclass(frozen=True, slots=True)
class CriterionResult:
    """One rule on one output: a score from 0 to 1, its weight, and the error where the rule failed (score 0)."""

    name: str
    score: float
    weight: float
    error: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class RubricResult:
    """One rubric on one output."""

    name: str
    aggregated_score: float
    criteria: tuple[CriterionResult, ...]

    @property
    def errors(self) -> tuple[str, ...]:
        """The errors of rules that failed, with the rule's name."""
        return tuple(f"{result.name}: {result.error}" for result in self.criteria if result.error)


@dataclass(frozen=True, slots=True)
class Preference:
    """A rubric with the weight that it has among a stakeholder's preferences."""

    rubric: Rubric
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The rubrics of a workflow at a timestep.

    `weighted_preference_total` is over the preferences, their weights normalised to one; without preferences it is over
    the workflow's evaluators, so that a call that passes only those has a total too.
    """

    timestep: int
    evaluation_results: tuple[RubricResult, ...]
    preference_results: tuple[RubricResult, ...] = ()
    weighted_preference_total: float = 0.0
    preference_scores: Mapping[str, float] = field(default_factory=dict)
    """Scores by the rubric's name, with a number behind a name that occurs again."""

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(error for r in (*self.preference_results, *self.evaluation_results) for error in r.errors)


class ValidationEngine:
    """Evaluates rubrics. A rule that fails scores zero and is reported; a judge whose engine fails is a JudgeError."""

    def __init__(
        self,
        seed: int = 42,
        judge: ChatModel | None = None,
        code_rules: CodeRuleRunner | None = None,
        needs_judge: bool = True,
    ) -> None:
        """`seed` is the judge's; what it answered is remembered by rule and output.

        Where there is no judge, a judge rule is a JudgeError, or with `needs_judge` False a rule that fails.
        """
        self.seed, self.judge, self.needs_judge = seed, judge, needs_judge
        self._judge_scores: dict[str, RuleScore] = {}
        self.code_rules = code_rules or CodeRuleRunner()

    async def evaluate_timestep(
        self,
        workflow: Workflow,
        workflow_evaluators: Sequence[Rubric] = (),
        timestep: int = 0,
        cadence: RunCondition | str | None = None,
        communications: Sequence[WorkflowMessage] | None = None,
        manager_actions: Sequence[ManagerAction] | None = None,
        preferences: Sequence[Preference] = (),
    ) -> EvaluationResult:
        """Evaluate a workflow's outputs by rubrics.

        `cadence` None runs every rule; otherwise rules of another run condition are left out. `communications` and
        `manager_actions` are appended to what judge rules read as the task.
        """
        if cadence is not None and cadence not in list(RunCondition):
            raise UserError(f"There is no cadence '{cadence}'; it is {', '.join(RunCondition)}, or None for all rules.")
        at = None if cadence is None else RunCondition(cadence)
        context = workflow.task_input + _context(communications, manager_actions)
        output = workflow.candidate_output

        async def evaluate(rubric: Rubric) -> RubricResult:
            return (await self.score_outputs(rubric, workflow.task_input, [output], at, context))[0]

        evaluated = tuple([await evaluate(rubric) for rubric in workflow_evaluators])
        preferred = tuple([await evaluate(preference.rubric) for preference in preferences])
        weights = [preference.weight for preference in preferences] if preferences else [1.0] * len(evaluated)
        scores = [result.aggregated_score for result in (preferred or evaluated)]
        total = sum(weights)
        weighted = sum(weight * score for weight, score in zip(weights, scores, strict=True)) / total if total else 0.0
        names: dict[str, float] = {}
        for result in preferred or evaluated:
            name = result.name if result.name not in names else f"{result.name} ({len(names) + 1})"
            names[name] = result.aggregated_score
        return EvaluationResult(timestep, evaluated, preferred, weighted, names)

    async def score_outputs(
        self,
        rubric: Rubric,
        task_input: str,
        outputs: Sequence[str],
        cadence: RunCondition | None = None,
        judge_context: str | None = None,
    ) -> list[RubricResult]:
        """Return the rubric's result on each of several outputs; all code rules run in one sandbox."""
        rules = rubric.all_rules
        scores: dict[int, Sequence[RuleScore]] = {}
        code = [i for i, rule in enumerate(rules) if isinstance(rule, CodeRule) and rule.run_condition.runs_at(cadence)]
        if code:
            chosen = [rule for rule in (rules[i] for i in code) if isinstance(rule, CodeRule)]
            scores.update(zip(code, await self.code_rules.score(chosen, task_input, outputs), strict=True))
        judged = [i for i, rule in enumerate(rules) if isinstance(rule, JudgeRule)]
        judged = [i for i in judged if rules[i].run_condition.runs_at(cadence)]
        questions = [rule for rule in (rules[i] for i in judged) if isinstance(rule, JudgeRule)]
        if self.judge is None and not self.needs_judge:
            scores.update({i: [RuleScore(0.0, NO_JUDGE)] * len(outputs) for i in judged})
        else:
            answers = await score_by_judge(
                questions, judge_context or task_input, outputs, self.judge, self.seed, self._judge_scores
            )
            scores.update(zip(judged, answers, strict=True))
        for index, rule in enumerate(rules):
            if isinstance(rule, MenuRule):
                scores[index] = [menu_score(rule, task_input, output) for output in outputs]
        return [_rubric_result(rubric, scores, index, cadence) for index in range(len(outputs))]


def menu_score(rule: MenuRule, task_input: str, output: str) -> RuleScore:
    """Return the score of a menu rule."""
    return RuleScore(_menu_value(rule.kind, rule.parameter, task_input, output))


@functools.lru_cache(maxsize=200_000)
def _menu_value(kind: str, parameter: str, task_input: str, output: str) -> float:
    return RULE_KINDS[kind].evaluate(task_input, output, parameter)


def _rubric_result(
    rubric: Rubric, scores: Mapping[int, Sequence[RuleScore]], number: int, cadence: RunCondition | None
) -> RubricResult:
    values = [scores[i][number] if i in scores else RuleScore(0.0) for i in range(rubric.num_rules)]
    criteria = tuple(
        CriterionResult(rule_label(rule), value.score, rule.weight, value.error, value.reasoning)
        for index, (rule, value) in enumerate(zip(rubric.all_rules, values, strict=True))
        if index in scores
    )
    total = rubric.total([value.score for value in values], cadence)
    return RubricResult(rubric.name, total, criteria)


def _context(communications: Sequence[WorkflowMessage] | None, manager_actions: Sequence[ManagerAction] | None) -> str:
    messages = [f"{message.sender}: {message.content}" for message in communications or ()]
    actions = [f"manager: {action.kind} {action.content}" for action in manager_actions or ()]
    return "".join(f"\n{line}" for line in (*messages, *actions))


Scorer = Callable[[Workflow], Awaitable[float]]


def create_rubric_based_scorer(rubric: Rubric, engine: ValidationEngine | None = None) -> Scorer:
    """Return a function that scores a workflow's outputs by a rubric, from 0 to 1."""
    scoring = engine or ValidationEngine()

    async def score(workflow: Workflow) -> float:
        return (await scoring.evaluate_timestep(workflow, [rubric])).weighted_preference_total

    return score
