"""Tasks of the environment `rubric` from own workflows and their ground truths: workers do the work beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from practicum.environments.rubric.rubric_case import MIN_OUTPUTS
from practicum.environments.rubric.rule_kinds import TOPICS
from practicum.environments.rubric.schema import Rubric
from practicum.environments.rubric.workflow import Workflow
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
        done = [await WorkflowEngine([worker]).run(workflow) for worker in workers]
        texts = dict.fromkeys(one.candidate_output for one in done if one.is_complete and one.candidate_output.strip())
        if len(texts) < MIN_OUTPUTS:
            raise UserError(
                f"The {len(workers)} workers made {len(texts)} different outputs of workflow '{workflow.name}'; "
                f"rubrics are compared on at least {MIN_OUTPUTS}."
            )
        rows.append(
            {
                "id": workflow.name,
                "question": workflow.goal,
                "task_input": workflow.task_input,
                "rubric": rubric.model_dump(mode="json"),
                "outputs": list(texts),
                "hidden_topics": list(hidden_topics),
            }
        )
    return rows
