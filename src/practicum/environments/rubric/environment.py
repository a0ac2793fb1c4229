"""`rubric`: ask a stakeholder a few questions, then write a rubric that judges work as the stakeholder would."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.data.task_file import read_task_file
from practicum.environment import AGENT_OPTIONS, Action, Environment, Message, Observation, ScriptedPolicy, Step
from practicum.environments.rubric.code_rules import shared_runner
from practicum.environments.rubric.manager_prompt import (
    FORMS,
    JSON,
    MENU,
    SHORT,
    Generated,
    next_prompt,
    parse,
    prompt_of,
)
from practicum.environments.rubric.menu import MAX_MENU_RULES, Question, UnreadableReply
from practicum.environments.rubric.planted_judge import flattered_score
from practicum.environments.rubric.probes import PROBES, dropped_criteria, probe_reply
from practicum.environments.rubric.rewards import (
    MINIMA,
    REWARDS,
    RubricComparison,
    coverage_of,
    l1,
    l2,
    precision_at,
    score_agreement,
    spearman,
)
from practicum.environments.rubric.rubric_case import RubricCase, case_of_task
from practicum.environments.rubric.schema import MAX_GENERATED_RULES, JudgeRule, Rubric, is_compound
from practicum.environments.rubric.stakeholder import Stakeholder
from practicum.environments.rubric.tasks import ENVIRONMENT, generated_tasks
from practicum.environments.rubric.validation import RubricResult, ValidationEngine
from practicum.errors import UserError, did_you_mean
from practicum.task import Task

STAKEHOLDER, JUDGE = "stakeholder", "judge"
FLATTERED = "flattered"
SUCCESS_ALIGNMENT = 0.8
"""Rank and score agreement from which a rubric counts as right."""
MAX_REPORTED_ERRORS = 5
INVALID_MARGIN = 0.2
"""How much less than the lowest reward of a valid rubric an episode without one earns."""


class RubricEnvironment(Environment):
    """Workflows of sixteen families; the reward is the agreement of the rubric with the stakeholder's own."""

    name = ENVIRONMENT
    formats = ("hf",)
    scripted_policies = PROBES
    agent_options = (*AGENT_OPTIONS, "form")
    floor = 0.0
    has_one_answer = False

    def __init__(
        self,
        reward: str = "agreement",
        form: str = MENU,
        max_turns: int = 3,
        levels: int | Sequence[int] = (1, 2, 3),
        criterion_dropout: float = 0.2,
        stakeholder: str = "scripted",
        judge: bool = False,
        families: Sequence[str] = (),
        files: dict[str, Any] | None = None,
    ) -> None:
        """`reward` is a name of `REWARDS`, or `flattered`, a judge that is easily impressed, for tests of the gauges.

        `form` is `menu` (words of a closed menu), `short` (the menu with letters, for models that cannot spell) or
        `json` (code rules and judge rules). `criterion_dropout` leaves criteria of the ground truth out of the reward
        of training tasks. With `stakeholder=policy` a model answers questions; with `judge` a model scores judge rules.
        `files` are files of own tasks by split.
        """
        for option, value, allowed in (
            ("reward", reward, (*REWARDS, FLATTERED)),
            ("form", form, FORMS),
            ("stakeholder", stakeholder, ("scripted", "policy")),
        ):
            if value not in allowed:
                raise UserError(f"rubric has no {option} '{value}'.{did_you_mean(str(value), allowed)}")
        if max_turns < 1:
            raise UserError(f"rubric needs max_turns of at least 1, got {max_turns}.")
        if not 0 <= criterion_dropout < 1:
            raise UserError(f"criterion_dropout must be from 0 to below 1, got {criterion_dropout}.")
        self.reward, self.form, self.max_turns = reward, form, max_turns
        self.levels = (levels,) if isinstance(levels, int) else tuple(levels)
        self.criterion_dropout, self.stakeholder_kind, self.has_judge = criterion_dropout, stakeholder, judge
        self.families = (families,) if isinstance(families, str) else tuple(families)
        self.files = dict(files or {})
        # The prompt offers no judge rules where there is no judge; a manager that writes one all the same has a rule
        # that fails, and not an episode that is never scored.
        self.engine = ValidationEngine(code_rules=shared_runner("generated"), needs_judge=False)
        self.ground_truth_engine = ValidationEngine(code_rules=shared_runner("ground truth"))

    def model_names(self) -> tuple[str, ...]:
        names = (STAKEHOLDER,) if self.stakeholder_kind == "policy" else ()
        return (*names, JUDGE) if self.has_judge else names

    @property
    def reward_without_rubric(self) -> float:
        """Reward of an episode that ends without a valid rubric: less than any valid rubric can earn."""
        max_rules = MAX_GENERATED_RULES if self.form == JSON else MAX_MENU_RULES
        lowest = 0.0 if self.reward == FLATTERED else MINIMA[self.reward](max_rules, self.max_turns - 1)
        return lowest - INVALID_MARGIN

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        if split in self.files:
            return read_task_file(self.files[split], self.name, split)[:count]
        return generated_tasks(split, count, seed, self.levels, self.families)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin with the stakeholder's request.

        The seed decides which criteria are dropped from an own task, which comes again in every epoch; of a generated
        task the task decides it.
        """
        self.task = task
        self.case: RubricCase = await case_of_task(task)
        short = self.form == SHORT
        if short and self.case.legend is None:
            raise UserError(f"Task '{task.id}' has no plan of its work, which form=short needs; use form=menu or json.")
        if not self.has_judge and any(isinstance(rule, JudgeRule) for rule in self.case.ground_truth.all_rules):
            raise UserError(
                f"The ground truth of task '{task.id}' has judge rules; set judge=true and name the judge's model "
                "(--env-arg judge=true --role judge=MODEL)."
            )
        self.client: Stakeholder = self.case.stakeholder(self.models.get(STAKEHOLDER), short)
        self.engine.judge = self.ground_truth_engine.judge = self.models.get(JUDGE)
        self.seed, self.num_turns, self.num_questions = seed, 0, 0
        goal = self.case.kind_of_work if short else self.case.goal
        prompt = prompt_of(self.form, goal, self.client.request(), self.max_turns, self.has_judge)
        return Observation((Message("user", prompt),))

    async def step(self, action: Action) -> Step:
        self.num_turns += 1
        turns_left = self.max_turns - self.num_turns
        try:
            reply = parse(self.form, action.content if not action.calls else action.text, self.client.legend)
        except UnreadableReply as error:
            return self._without_rubric(str(error))
        if isinstance(reply, Generated):
            return await self._score(reply.rubric)
        if turns_left < 1:
            return self._without_rubric("the last turn must write the rubric")
        return await self._answer(reply, turns_left)

    async def truncate(self) -> Step:
        return self._without_rubric("the episode ended before a rubric was written")

    async def _answer(self, question: Question, turns_left: int) -> Step:
        self.num_questions += 1
        answer = await self.client.answer(question.text)
        return Step(Observation((Message("user", next_prompt(self.form, answer, turns_left)),)))

    def _without_rubric(self, problem: str) -> Step:
        worst = {
            "l1": 1.0,
            "l2": 1.0,
            **dict.fromkeys(("valid", "spearman", "agreement", "precision_at_3", "coverage"), 0.0),
        }
        info = {**worst, "questions": float(self.num_questions)}
        return Step(
            reward=self.reward_without_rubric,
            components={"verifier": 0.0} if self.case.held_out_scores else {},
            terminated=True,
            success=False,
            progress=0.0,
            info={**info, "problem": problem},
        )

    async def _score(self, rubric: Rubric) -> Step:
        case = self.case
        trained = case.ground_truth
        if self.task.split == "train" and self.criterion_dropout:
            key = self.task.hash if case.is_generated else f"{self.task.hash}/{self.seed}"
            trained = dropped_criteria(trained, self.criterion_dropout, key)
        texts = [*case.outputs, *case.held_out_outputs]
        results = await self.engine.score_outputs(rubric, case.task_input, texts)
        scores = [result.aggregated_score for result in results]
        synthetic, held_out = scores[: len(case.outputs)], scores[len(case.outputs) :]
        gold_scores = await self._ground_truth_scores(trained)
        coverage = coverage_of(rubric, trained)
        comparison = RubricComparison(synthetic, gold_scores, rubric.num_rules, self.num_questions, coverage)
        components: Mapping[str, float]
        if self.reward == FLATTERED:
            total = flattered_score(rubric)
            components = {"flattered": total}
        else:
            reward = REWARDS[self.reward](comparison)
            total, components = reward.total, reward.components
        full = gold_scores if trained is case.ground_truth else await self._ground_truth_scores(case.ground_truth)
        rank, score = spearman(synthetic, full), score_agreement(synthetic, full)
        agreement = 0.625 * max(rank, 0.0) + 0.375 * max(score, 0.0)
        info: dict[str, Any] = {
            "valid": 1.0,
            "questions": float(self.num_questions),
            "num_rules": float(rubric.num_rules),
            **rule_figures(rubric, results),
            "spearman": rank,
            "agreement": agreement,
            "l1": l1(synthetic, full),
            "l2": l2(synthetic, full),
            "precision_at_3": precision_at(synthetic, full),
            "coverage": coverage_of(rubric, case.ground_truth),
            "synthetic": synthetic[0],
            "ground_truth": full[0],
        }
        return Step(
            reward=total,
            components={**components, **self._verifier(held_out)},
            terminated=True,
            success=agreement >= SUCCESS_ALIGNMENT,
            progress=max(0.0, min(1.0, agreement)),
            info=info,
        )

    def _verifier(self, scores: Sequence[float]) -> dict[str, float]:
        """The held-out judge's component; a case without held-out outputs has none, so that no gauge reads it."""
        worth = self.case.held_out_scores
        return {"verifier": spearman(scores, worth)} if worth else {}

    async def _ground_truth_scores(self, rubric: Rubric) -> list[float]:
        results = await self.ground_truth_engine.score_outputs(rubric, self.case.task_input, self.case.outputs)
        return [result.aggregated_score for result in results]

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy that asks about each topic that the stakeholder holds back, then writes its rubric."""
        return self.scripted("expert", task)

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that writes random rules of the menu."""
        return self.scripted("random", task, seed)

    def scripted(self, name: str, task: Task, seed: int = 0) -> ScriptedPolicy:
        """Return a scripted manager: the expert, one that asks too much, or a probe of the reward."""
        turn = 0

        def act(observation: Observation) -> Action:
            nonlocal turn
            turn += 1
            return Action(content=probe_reply(name, task, seed, turn, self.max_turns, self.form))

        return act

    def wrong_attempts(self, task: Task, solution: Sequence[Action]) -> Sequence[Sequence[Action]]:
        """A constant score, stuffed keywords, the opposite of the expert's rubric, no rubric at all."""
        names = ("constant", "keywords", "opposite")
        replies = [probe_reply(name, task, 0, 1, 1, self.form) for name in names]
        return [*([Action(content=reply)] for reply in replies), [Action(content="ask wording")] * self.max_turns]


def rule_figures(rubric: Rubric, results: Sequence[RubricResult]) -> dict[str, Any]:
    """Return figures of a rubric's rules: those that failed on any output, with their errors, and the compound ones.

    What the judge grants to compound rules and to others is told apart: more for the compound ones is a sign that it
    grants them when only a part holds.
    """
    by_rule = list(zip(*(result.criteria for result in results), strict=True))
    errors = [
        next((f"{criterion.name}: {criterion.error}" for criterion in scored if criterion.error), "")
        for scored in by_rule
    ]
    failed = [error for error in errors if error]
    compound = [is_compound(rule) for rule in rubric.all_rules]
    figures: dict[str, Any] = {"compound_rules": float(sum(compound)), "failed_rules": float(len(failed))}
    if failed:
        figures["rule_errors"] = "; ".join(failed[:MAX_REPORTED_ERRORS])
    for name, is_wanted in (("compound_granted", True), ("single_granted", False)):
        granted = [
            statistics.fmean(criterion.score for criterion in scored)
            for scored, rule, is_one in zip(by_rule, rubric.all_rules, compound, strict=True)
            if isinstance(rule, JudgeRule) and is_one == is_wanted
        ]
        if granted:
            figures[name] = statistics.fmean(granted)
    return figures
