"""Prompts of a planner: a short one for small models, with letters for slots, and the paper's for larger ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from practicum.environments.htdag.requests import ROOT
from practicum.environments.htdag.task_dag import TaskDAG
from practicum.environments.htdag.vocabulary import STEP_SECONDS, WORD, is_step, slot_letters

NO_PLAN = "-"
READY = "+"
"""Marks a task of the short prompt that can be executed: a step, or a task whose parts are all ready."""


def plan_line(dag: TaskDAG) -> str:
    """Return the plan in one line: `1 buy lamp(find, pay<1); 2 tell Ada<1`.

    Parts are in brackets, `<1` is an order among siblings. Tasks of the request and tasks that are not steps have their
    ids before them; a slot that is the parent's is left out.
    """
    return "; ".join(_node_text(dag, task_id, "") for task_id in _top_level(dag)) or NO_PLAN


def _top_level(dag: TaskDAG) -> tuple[str, ...]:
    """The tasks that the request was divided into; none where there is no plan yet."""
    return dag.children(ROOT) if ROOT in dag else ()


def _node_text(dag: TaskDAG, task_id: str, parent_slot: str) -> str:
    node, parent = dag[task_id], dag.parent(task_id)
    slot = str(node.metadata.get("slot", ""))
    label = node.task_type if slot == parent_slot or not slot else f"{node.task_type} {slot}"
    name = label if parent != ROOT and is_step(node.task_type) else f"{task_id} {label}"
    children = ", ".join(_node_text(dag, child, slot) for child in dag.children(task_id))
    siblings = dag.children(parent) if parent is not None else ()
    after = [str(siblings.index(before) + 1) if before in siblings else before for before in dag.dependencies(task_id)]
    return f"{name}{f'({children})' if children else ''}{'<' + ' '.join(after) if after else ''}"


def open_plan_line(dag: TaskDAG, letters: Mapping[str, str]) -> str:
    """Return what is planned and what is open in one line: `1 buy A+; 2 study B(2.2 report)<1`.

    Of a task's parts only those that are not ready are shown. Letters stand for slots.
    """
    siblings = _top_level(dag)
    shown = []
    for task_id in siblings:
        after = " ".join(str(siblings.index(before) + 1) for before in dag.dependencies(task_id) if before in siblings)
        shown.append(f"{_open_text(dag, task_id, letters)}{'<' + after if after else ''}")
    return "; ".join(shown) or NO_PLAN


def _open_text(dag: TaskDAG, task_id: str, letters: Mapping[str, str]) -> str:
    node = dag[task_id]
    slot = str(node.metadata.get("slot", "")) if dag.parent(task_id) == ROOT else ""
    label = f"{task_id} {node.task_type}{f' {letters.get(slot, slot)}' if slot else ''}"
    if _ready(dag, task_id):
        return label + READY
    parts = ", ".join(_open_text(dag, child, letters) for child in dag.children(task_id) if not _ready(dag, child))
    return f"{label}({parts})" if parts else label


def _ready(dag: TaskDAG, task_id: str) -> bool:
    children = dag.children(task_id)
    return all(_ready(dag, child) for child in children) if children else is_step(dag[task_id].task_type)


def short_prompt(request: str, dag: TaskDAG, step_count: int) -> str:
    """Return the prompt for small models: request, what is planned and open, number of decisions.

    The slots that the request mentions are named by letters in their order, so that a reply names one by one token.
    """
    letters = slot_letters(request)
    text = WORD.sub(lambda match: letters.get(match[0], match[0]), request)
    return f"{text}\n{open_plan_line(dag, letters)}\n{step_count}"


def json_prompt(request: str, dag: TaskDAG, step_count: int) -> str:
    """Return the paper's prompt with the DAG itself, the steps that can be executed, and the order of subtasks."""
    return f"""You are a task decomposition expert.

Current task: {request}
Current DAG size: {len(dag)}
Current DAG: {plan_line(dag)}
Steps taken: {step_count}

Steps that can be executed: {", ".join(STEP_SECONDS)}.
Decision: Should you decompose a task further, or is the plan ready for execution?

If decompose:
- Choose which task to decompose ("0" is the request itself)
- Generate 2-5 subtasks; begin each description with its step and name the thing or person it is about
- In "after", list the ids of subtasks that must be finished before it

Output JSON:
{{
  "decompose_further": true/false,
  "task_id": "id_to_decompose",
  "subtasks": [
    {{"task_id": "...", "task_type": "...", "description": "...", "after": []}}
  ]
}}
"""


PROMPTS: Mapping[str, Callable[[str, TaskDAG, int], str]] = {"short": short_prompt, "json": json_prompt}
"""The prompts by the names that the environment takes."""
