"""Users' own workflows and ground-truth rubrics: JSON files, whose rubrics belong to workflows by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from practicum.environments.rubric.rubric_case import rubric_of_field
from practicum.environments.rubric.schema import Rubric
from practicum.environments.rubric.workflow import DOCUMENT, SUFFIXES, Workflow, WorkflowResource, WorkflowTask
from practicum.errors import UserError, did_you_mean


def _names(value: object) -> object:
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
"""A list of names, or one name."""


class _FileRow(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TaskRow(_FileRow):
    """A task in a file."""

    name: str = Field(min_length=1)
    description: str = ""
    dependencies: Names = ()
    inputs: Names = ()
    output: str = ""
    form: str = DOCUMENT
    hours: float = Field(default=1.0, ge=0)
    cost: float = Field(default=0.0, ge=0)


class ResourceRow(_FileRow):
    """A resource in a file: its text, or the path of a .md, .txt, .csv, .xlsx or .py file beside the JSON file."""

    name: str = Field(min_length=1)
    form: str = DOCUMENT
    text: str | None = None
    file: str | None = None


class WorkflowRow(_FileRow):
    """A workflow in a file."""

    name: str = Field(min_length=1)
    goal: str = ""
    tasks: tuple[TaskRow, ...] = ()
    resources: tuple[ResourceRow, ...] = ()
    deliverable: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict)
    seed: int = 0


def read_workflows(path: Path) -> list[Workflow]:
    """Return the workflows of a JSON file: a list, or {"workflows": [...]}."""
    value = read_json(path)
    rows = value.get("workflows") if isinstance(value, Mapping) else value
    if not isinstance(rows, list) or not rows:
        raise UserError(f"'{path}' must be a list of workflows, each with a 'name'.")
    workflows = [workflow_of(row, path) for row in rows]
    names = [workflow.name for workflow in workflows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"'{path}' has two workflows named '{twice[0]}'; rubrics belong to workflows by name.")
    return workflows


def read_rubrics(path: Path) -> dict[str, Rubric]:
    """Return the rubrics of a JSON file by the name of their workflow.

    The file is a list of {"name": ..., "rubric": ...} or a mapping from names to rubrics.
    """
    value = read_json(path)
    if isinstance(value, list):
        for index, row in enumerate(value):
            if not isinstance(row, Mapping) or not {"name", "rubric"} <= set(row):
                raise UserError(f'\'{path}\', row {index}: a rubric is {{"name": WORKFLOW, "rubric": RUBRIC}}.')
        rows = [(str(row["name"]), row["rubric"]) for row in value]
    elif isinstance(value, Mapping):
        rows = [(str(name), rubric) for name, rubric in value.items()]
    else:
        raise UserError(f"'{path}' must be a list of rubrics or a mapping from names of workflows to rubrics.")
    return {name: rubric_of_field(rubric, name) for name, rubric in rows}


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' cannot be read as JSON: {error}.") from None


def workflow_of(row: object, path: Path = Path("workflows.json")) -> Workflow:
    """Return a workflow from JSON; files of its resources are looked for beside `path`."""
    try:
        read = TypeAdapter(WorkflowRow).validate_python(row)
    except ValidationError as error:
        raise UserError(_problem(row, path, error)) from None
    resources = {entry.name: _resource(entry, read.name, path) for entry in read.resources}
    tasks = {task.name: WorkflowTask(**task.model_dump()) for task in read.tasks}
    _check(read, set(resources), path)
    return Workflow(
        read.name,
        read.goal or read.name,
        tasks,
        resources,
        read.deliverable,
        metadata=dict(read.metadata),
        seed=read.seed,
    )


def _problem(row: object, path: Path, error: ValidationError) -> str:
    first = error.errors()[0]
    name = row.get("name", "?") if isinstance(row, Mapping) else "?"
    *path_in_row, last = [str(part) for part in first["loc"]] or ["the row"]
    location = f"'{path}', workflow '{name}'" + (f", {'.'.join(path_in_row)}" if path_in_row else "")
    if first["type"] == "extra_forbidden":
        fields: Mapping[str, type[BaseModel]] = {"tasks": TaskRow, "resources": ResourceRow}
        kind = fields.get(path_in_row[0] if path_in_row else "", WorkflowRow)
        return f"{location}: there is no field '{last}'.{did_you_mean(last, kind.model_fields)}"
    return f"{location}: '{last}': {first['msg']}."


def _resource(entry: ResourceRow, workflow: str, path: Path) -> WorkflowResource:
    location = f"'{path}', workflow '{workflow}', resource '{entry.name}'"
    if (entry.text is None) == (entry.file is None):
        raise UserError(f"{location}: it has either a 'text' or a 'file'.")
    if entry.file is not None:
        read = WorkflowResource.read(path.parent / Path(entry.file).expanduser())
        return WorkflowResource(entry.name, read.form, read.text)
    if entry.form not in SUFFIXES:
        raise UserError(f"{location}: there is no form '{entry.form}'; the forms are {', '.join(SUFFIXES)}.")
    return WorkflowResource(entry.name, entry.form, entry.text or "")


def _check(row: WorkflowRow, resources: set[str], path: Path) -> None:
    """Raise UserError where a task or the deliverable names something that does not exist."""
    location = f"'{path}', workflow '{row.name}'"
    names = [task.name for task in row.tasks]
    if len(set(names)) < len(names):
        raise UserError(f"{location}: two tasks have the same name.")
    outputs = [task.output for task in row.tasks if task.output]
    if len(set(outputs)) < len(outputs):
        raise UserError(f"{location}: two tasks write the same output.")
    available = resources | set(outputs)
    for task in row.tasks:
        if task.form not in SUFFIXES:
            raise UserError(f"{location}, task '{task.name}': there is no form '{task.form}'; {', '.join(SUFFIXES)}.")
        for name in task.inputs:
            if name not in available:
                raise UserError(
                    f"{location}, task '{task.name}': its input '{name}' is no resource and no task's output."
                    f"{did_you_mean(name, sorted(available))}"
                )
    if row.deliverable and row.deliverable not in outputs:
        raise UserError(
            f"{location}: no task has the deliverable '{row.deliverable}' as its output."
            f"{did_you_mean(row.deliverable, outputs)}"
        )
