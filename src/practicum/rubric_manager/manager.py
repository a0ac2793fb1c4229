"""The manager: asks a stakeholder a few questions, then writes a rubric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel

from practicum.environment import ChatModel, Usage
from practicum.environments.rubric.schema import Rubric
from practicum.environments.rubric.workflow import Workflow, WorkflowMessage
from practicum.rubric_manager.decomposition import decompose_preference_to_evaluator
from practicum.rubric_manager.structured import StructuredOutputError, generate_structured, make_model

MAX_CLARIFICATION_BUDGET = 5
SYSTEM = (
    "You manage work for a client and must write a rubric for it. Decide whether to ask the client one more question "
    "(each costs a little) or to write the rubric now."
)


class Decision(BaseModel):
    """What a manager does next."""

    action: Literal["ask", "generate"]
    question: str = ""


@dataclass(frozen=True)
class ManagerObservation:
    """What a manager sees before it acts."""

    workflow: Workflow
    dialogue: Sequence[WorkflowMessage]
    turns_left: int
    budget_left: int

    @property
    def must_generate(self) -> bool:
        """Whether only a rubric is allowed: the last turn, or no question left."""
        return self.turns_left <= 1 or self.budget_left < 1

    def text(self) -> str:
        conversation = "\n".join(f"{message.sender}: {message.content}" for message in self.dialogue)
        limits = f"Turns left: {self.turns_left}. Questions left: {self.budget_left}."
        return f"Work: {self.workflow.task_input}\n\nDialogue:\n{conversation}\n\n{limits}"


@dataclass
class RubricDecompositionManagerAgent:
    """A manager that speaks by a model: one given, a server's by name, or with `use_local` one that is loaded here.

    `use_local` None follows USE_LOCAL_MODELS, `model_path` None LOCAL_MODEL_PATH.
    """

    model: ChatModel | None = None
    model_name: str = "gpt-4o"
    use_local: bool | None = None
    model_path: str | None = None
    max_clarification_budget: int = MAX_CLARIFICATION_BUDGET
    seed: int = 42
    name: str = "manager"
    usage: list[Usage] = field(default_factory=list)
    """Tokens of every call, of those without a valid reply too."""

    def __post_init__(self) -> None:
        self.chat_model: ChatModel = self.model or make_model(self.model_name, self.use_local, self.model_path)

    async def take_action(self, observation: ManagerObservation) -> Decision | Rubric:
        """Return a question or the rubric; where a rubric is due, the model is not asked for a decision."""
        try:
            return await self._act(observation)
        except StructuredOutputError as error:
            self.usage.append(error.usage)
            raise

    async def _act(self, observation: ManagerObservation) -> Decision | Rubric:
        if not observation.must_generate:
            decision, usage = await generate_structured(
                SYSTEM, observation.text(), Decision, seed=self.seed, return_usage=True, model=self.chat_model
            )
            self.usage.append(usage)
            if decision.action == "ask" and decision.question.strip():
                question: Decision = decision
                return question
        wishes = [message.content for message in observation.dialogue if message.sender != self.name]
        rubric, usage = await decompose_preference_to_evaluator(
            "\n".join(wishes),
            observation.workflow.task_input,
            observation.dialogue,
            model=self.chat_model,
            seed=self.seed,
            name=observation.workflow.name,
        )
        self.usage.append(usage)
        return rubric
