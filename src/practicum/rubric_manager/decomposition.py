"""Turns a stakeholder's preferences and the dialogue about them into a rubric, with a model."""

from __future__ import annotations

from collections.abc import Sequence

from practicum.environment import ChatModel, Usage
from practicum.environments.rubric.schema import GeneratedRubric, Rubric
from practicum.environments.rubric.workflow import WorkflowMessage
from practicum.rubric_manager.structured import generate_structured

SYSTEM = (
    "You write rubrics. A rubric has rules that together score a piece of work as this client would. A code rule "
    "defines evaluate(task_input: str, candidate_output: str) -> float from 0 to 1, is deterministic and uses Python's "
    "standard library only. A judge rule asks one question about the work. Give each rule one thing to check, and a "
    "weight by how much the client cares. Tables have | between cells."
)


def decomposition_prompt(preference: str, task: str, dialogue: Sequence[WorkflowMessage] = ()) -> str:
    """Return the prompt: the work, the client's preferences and the dialogue."""
    conversation = "\n".join(f"{message.sender}: {message.content}" for message in dialogue)
    parts = (f"Work:\n{task}", f"The client wants:\n{preference}", f"Dialogue:\n{conversation}" if conversation else "")
    return "\n\n".join(part for part in parts if part)


async def decompose_preference_to_evaluator(
    preference: str,
    task: str = "",
    dialogue: Sequence[WorkflowMessage] = (),
    *,
    model: ChatModel | str | None = None,
    seed: int | None = None,
    temperature: float | None = None,
    name: str = "generated",
) -> tuple[Rubric, Usage]:
    """Return an executable rubric for a preference in words, and the tokens that it took."""
    generated, usage = await generate_structured(
        SYSTEM,
        decomposition_prompt(preference, task, dialogue),
        GeneratedRubric,
        temperature,
        seed,
        return_usage=True,
        model=model,
    )
    rubric: Rubric = generated.rubric(name)
    return rubric, usage
