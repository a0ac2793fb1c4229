"""Runs a workflow: at every timestep each ready task is done by a worker, which reads resources and writes one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from practicum.environment import ChatModel, Message
from practicum.environments.rubric.workflow import TaskStatus, Workflow, WorkflowMessage, WorkflowResource, WorkflowTask
from practicum.errors import UserError, did_you_mean

MAX_TIMESTEPS = 100
Evaluator = Callable[[Workflow, int], Awaitable[object]]


@dataclass(frozen=True)
class Work:
    """What a worker is given: a task, the workflow's goal, the resources that the task reads, and a seed."""

    task: WorkflowTask
    goal: str
    inputs: Mapping[str, WorkflowResource]
    seed: int


class WorkflowWorker(Protocol):
    """Does a task: reads its inputs and returns the text of its output."""

    name: str

    async def perform(self, work: Work) -> str:
        """Return the text of the task's output; a table has `|` between its cells."""
        ...


class PolicyWorker:
    """A model that does tasks."""

    def __init__(self, model: ChatModel, name: str = "worker", guidance: str = "") -> None:
        self.model, self.name, self.guidance = model, name, guidance

    async def perform(self, work: Work) -> str:
        inputs = "\n\n".join(f"{resource.file_name}:\n{resource.text}" for resource in work.inputs.values())
        form = {"csv": "a table with | between cells", "xlsx": "a table with | between cells", "code": "Python code"}
        form_text = form.get(work.task.form, "a document in Markdown")
        parts = [f"Goal: {work.goal}", f"Task: {work.task.name}. {work.task.description}", self.guidance, inputs]
        question = "\n\n".join(part for part in (*parts, f"Reply with {form_text} only.") if part)
        reply = await self.model.reply([Message("user", question)], seed=work.seed)
        return reply.text


class WorkflowEngine:
    """Runs workflows with workers; tasks are given to them in turn, or by name with `assignments`."""

    def __init__(self, workers: Sequence[WorkflowWorker], assignments: Mapping[str, str] | None = None) -> None:
        self.workers = tuple(workers)
        self.assignments = dict(assignments or {})
        names = [worker.name for worker in self.workers]
        if not names:
            raise UserError("A WorkflowEngine needs at least one worker.")
        for task, name in self.assignments.items():
            if name not in names:
                raise UserError(f"Task '{task}' is given to '{name}', who is no worker.{did_you_mean(name, names)}")

    def worker_for(self, task: WorkflowTask, number: int) -> WorkflowWorker:
        name = self.assignments.get(task.name)
        named = next((worker for worker in self.workers if worker.name == name), None)
        return named or self.workers[number % len(self.workers)]

    async def run(self, workflow: Workflow, evaluate: Evaluator | None = None) -> Workflow:
        """Return a copy of the workflow in which every task that can be done is done.

        `evaluate` is awaited after every timestep with the workflow and the number of the timestep.
        """
        for name in self.assignments:
            if name not in workflow.tasks:
                raise UserError(f"Workflow '{workflow.name}' has no task '{name}'.{did_you_mean(name, workflow.tasks)}")
        current = workflow.copy()
        for timestep in range(MAX_TIMESTEPS):
            ready = current.ready_tasks()
            if not ready:
                break
            current.timestep = timestep
            order = list(current.tasks)
            texts = await asyncio.gather(
                *(self.worker_for(task, order.index(task.name)).perform(_work(current, task)) for task in ready),
                return_exceptions=True,
            )
            for task, text in zip(ready, texts, strict=True):
                self._record(current, task, text, timestep)
            if evaluate is not None:
                await evaluate(current, timestep)
        return current

    def _record(self, workflow: Workflow, task: WorkflowTask, text: str | BaseException, timestep: int) -> None:
        worker = self.worker_for(task, list(workflow.tasks).index(task.name)).name
        if isinstance(text, BaseException):
            if not isinstance(text, Exception):
                raise text
            workflow.tasks[task.name] = replace(task, status=TaskStatus.FAILED)
            report = f"{task.name} failed: {type(text).__name__}: {text}"
        else:
            workflow.tasks[task.name] = replace(task, status=TaskStatus.COMPLETED)
            if task.output:
                workflow.resources[task.output] = WorkflowResource(task.output, task.form, text)
            report = f"{task.name} is done"
        workflow.hours_spent += task.hours
        workflow.cost_spent += task.cost
        workflow.messages.append(WorkflowMessage(worker, "manager", report, "report", timestep))


def _work(workflow: Workflow, task: WorkflowTask) -> Work:
    inputs = {name: workflow.resources[name] for name in task.inputs if name in workflow.resources}
    return Work(task, workflow.goal, inputs, workflow.seed)
