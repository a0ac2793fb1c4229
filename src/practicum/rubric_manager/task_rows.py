"""Tasks of the environment `rubric` from own workflows and their ground truths: workers do the work beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from practicum.environments.rubric.rubric_case import MIN_OUTPUTS
from practicum.environments.rubric.rule_kinds import TOPICS
from practicum.environments.rubric.schema import Rubric
from practicum.environments.rubric.workflow import Workflow, WorkflowTask
from practicum.environments.rubric.workflow_engine import WorkflowEngine, WorkflowWorker
from practicum.errors import UserError, did_you_mean
from practicum.rubric_manager.episode import ground_truth_for


async def make_task_rows(
    workflows: Sequence[Workflow],
    gt_rubrics: Mapping[str, Rubric],
    workers: Sequence[WorkflowWorker],
    hidden_topics: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return a row per workflow for `--data FILE` and `data.train_files`: every worker does all of its work once.

    Rubrics are compared on what the workers deliver, so they should differ in quality: models of different sizes or
    temperatures. Texts that are the same count once, and at least three must be left.
    """
    for topic in hidden_topics:
        if topic not in TOPICS:
            raise UserError(f"There is no topic '{topic}' to hide.{did_you_mean(topic, TOPICS)}")
    rows = []
    for workflow in workflows:
        rubric = ground_truth_for(workflow, gt_rubrics)
        texts = await outputs_of(workflow, workers)
        rows.append(
            {
                "id": workflow.name,
                "question": workflow.goal,
                "task_input": workflow.task_input,
                "rubric": rubric.model_dump(mode="json"),
                "outputs": texts,
                "hidden_topics": list(hidden_topics),
            }
        )
    return rows


async def add_outputs(rows: Sequence[Mapping[str, Any]], workers: Sequence[WorkflowWorker]) -> list[dict[str, Any]]:
    """Return rows of a converter with what the workers deliver for each; rows that have outputs are as before."""
    added = []
    for row in rows:
        if "outputs" in row:
            added.append(dict(row))
            continue
        workflow = workflow_of_row(row)
        added.append({**row, "task_input": workflow.task_input, "outputs": await outputs_of(workflow, workers)})
    return added


def workflow_of_row(row: Mapping[str, Any]) -> Workflow:
    """Return the workflow of a converted row: its own tasks, each reading what those before it wrote, or one task."""
    if "question" not in row:
        raise UserError(f"Row '{row.get('id', '?')}' has no question.")
    question = str(row["question"])
    listed = row.get("tasks") or [{"name": "answer", "description": question}]
    task_names = {str(task["name"]) for task in listed}
    tasks = {}
    for task in listed:
        name, before = (
            str(task["name"]),
            tuple(str(item) for item in task.get("dependencies", ()) if str(item) in task_names),
        )
        hours, cost = float(task.get("hours") or 0.0), float(task.get("cost") or 0.0)
        tasks[name] = WorkflowTask(
            name, str(task.get("description", "")), before, before, output=name, hours=hours, cost=cost
        )
    return Workflow(str(row.get("id", "row")), question, tasks)


async def outputs_of(workflow: Workflow, workers: Sequence[WorkflowWorker]) -> list[str]:
    """Return the different texts that workers deliver; UserError where they are too few to compare rubrics on."""
    done = [await WorkflowEngine([worker]).run(workflow) for worker in workers]
    texts = dict.fromkeys(item.candidate_output for item in done if item.is_complete and item.candidate_output.strip())
    if len(texts) < MIN_OUTPUTS:
        failed = next((item.messages[-1].content for item in done if not item.is_complete and item.messages), "")
        raise UserError(
            f"The {len(workers)} workers made {len(texts)} different outputs of workflow '{workflow.name}'; "
            f"rubrics are compared on at least {MIN_OUTPUTS}.{f' {failed}.' if failed else ''}"
        )
    return list(texts)
