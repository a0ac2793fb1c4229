"""Prompts of a planner: the plan so far in one line for small models, and the paper's prompt for larger ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from practicum.environments.htdag.requests import ROOT
from practicum.environments.htdag.task_dag import TaskDAG
from practicum.environments.htdag.vocabulary import STEP_SECONDS, is_step

NO_PLAN = "-"


def plan_line(dag: TaskDAG) -> str:
    """Return the plan in one line: `1 buy lamp(find, pay<1); 2 tell Ada<1`.

    Parts are in brackets, `<1` is an order among siblings. Tasks of the request and tasks that are not steps have their
    ids before them; a slot that is the parent's is left out.
    """
    return "; ".join(_node_text(dag, task_id, "") for task_id in dag.children(ROOT)) or NO_PLAN


def _node_text(dag: TaskDAG, task_id: str, parent_slot: str) -> str:
    node, parent = dag[task_id], dag.parent(task_id)
    slot = str(node.metadata.get("slot", ""))
    label = node.task_type if slot == parent_slot or not slot else f"{node.task_type} {slot}"
    name = label if parent != ROOT and is_step(node.task_type) else f"{task_id} {label}"
    children = ", ".join(_node_text(dag, child, slot) for child in dag.children(task_id))
    siblings = dag.children(parent) if parent is not None else ()
    after = [str(siblings.index(before) + 1) if before in siblings else before for before in dag.dependencies(task_id)]
    return f"{name}{f'({children})' if children else ''}{'<' + ' '.join(after) if after else ''}"


def short_prompt(request: str, dag: TaskDAG, step_count: int) -> str:
    """Return the prompt for small models: request, plan so far, number of decisions."""
    return f"{request}\n{plan_line(dag)}\nstep {step_count}"


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
