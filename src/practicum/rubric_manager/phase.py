"""The phase before the work: manager and stakeholder speak, and a rubric is written."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Protocol

from practicum.environments.rubric.schema import Rubric
from practicum.environments.rubric.stakeholder import Stakeholder
from practicum.environments.rubric.workflow import CommunicationService, ManagerAction, Workflow
from practicum.errors import UserError
from practicum.rubric_manager.manager import Decision, ManagerObservation
from practicum.rubric_manager.structured import StructuredOutputError

GENERATED, FAILED = "all_rubrics_generated", "generation_failed"
MAX_TURNS_REACHED = "max_turns_reached"


class Manager(Protocol):
    """What the phase needs of a manager."""

    name: str
    max_clarification_budget: int

    async def take_action(self, observation: ManagerObservation) -> Decision | Rubric:
        """Return a question or a rubric."""
        ...


@dataclass(frozen=True)
class ClarificationTurn:
    """A question, its answer, and when they were exchanged."""

    question: str
    response: str
    asked_at: str


@dataclass
class PreExecutionLog:
    """What happened in the phase."""

    clarification_turns: list[ClarificationTurn] = field(default_factory=list)
    generated_rubrics: list[Rubric] = field(default_factory=list)
    completion_reason: str = MAX_TURNS_REACHED
    total_turns: int = 0
    budget_used: int = 0
    error: str = ""


class InitialRubricGenerationPhase:
    """At most `max_turns` turns: each asks one question or writes the rubric.

    The last turn, and any turn without clarification budget, must write it; a question is not answered then.
    """

    def __init__(
        self,
        manager: Manager,
        stakeholder: Stakeholder,
        communication_service: CommunicationService | None = None,
        max_turns: int = 3,
    ) -> None:
        if max_turns < 1:
            raise UserError(f"The phase needs max_turns of at least 1, got {max_turns}.")
        self.manager, self.stakeholder, self.max_turns = manager, stakeholder, max_turns
        self.communication_service = communication_service or CommunicationService()

    async def run(self, workflow: Workflow) -> PreExecutionLog:
        """Run the dialogue; the rubric is then in `stakeholder.generated_rubrics` and sent to the workers."""
        log, service = PreExecutionLog(), self.communication_service
        service.send(self.stakeholder.name, self.manager.name, self.stakeholder.request(), "request")
        for turn in range(self.max_turns):
            log.total_turns = turn + 1
            budget_left = self.manager.max_clarification_budget - log.budget_used
            observation = ManagerObservation(workflow, tuple(service.messages), self.max_turns - turn, budget_left)
            try:
                action = await self.manager.take_action(observation)
            except StructuredOutputError as error:
                log.completion_reason, log.error = FAILED, str(error)
                break
            if isinstance(action, Rubric):
                self._keep(workflow, action, log, turn)
                break
            if observation.must_generate:
                log.completion_reason, log.error = (
                    MAX_TURNS_REACHED,
                    "the manager asked where it had to write the rubric",
                )
                break
            await self._ask(workflow, action.question, log, turn)
        return log

    def _keep(self, workflow: Workflow, rubric: Rubric, log: PreExecutionLog, turn: int) -> None:
        self.stakeholder.generated_rubrics.append(rubric)
        log.generated_rubrics.append(rubric)
        log.completion_reason = GENERATED
        workflow.actions.append(ManagerAction("generate", rubric.name))
        names = ", ".join(rule.name or rule.description for rule in rubric.all_rules)
        self.communication_service.send(self.manager.name, "all", f"The work is scored by: {names}", "rubric", turn)

    async def _ask(self, workflow: Workflow, question: str, log: PreExecutionLog, turn: int) -> None:
        service = self.communication_service
        log.budget_used += 1
        workflow.actions.append(ManagerAction("ask", question))
        asked_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        service.send(self.manager.name, self.stakeholder.name, question, "question", turn)
        await self.stakeholder.policy_step(service, turn)
        log.clarification_turns.append(ClarificationTurn(question, service.messages[-1].content, asked_at))
