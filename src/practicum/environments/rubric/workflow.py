"""Workflows: tasks with dependencies, hours and costs, the resources that they read and write, and messages."""

from __future__ import annotations

import csv
import enum
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from practicum.environments.rubric.rule_kinds import CELL
from practicum.errors import UserError

DOCUMENT, CSV, XLSX, CODE = "document", "csv", "xlsx", "code"
SUFFIXES: Mapping[str, str] = {DOCUMENT: ".md", CSV: ".csv", XLSX: ".xlsx", CODE: ".py"}
FORM_OF_SUFFIX = {".md": DOCUMENT, ".txt": DOCUMENT, ".csv": CSV, ".xlsx": XLSX, ".py": CODE}


NUMBER_CELL = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d*[1-9])?")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Characters that a workbook cannot hold."""


def table_text(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table as the text that rules and models read: one row per line, `|` between cells."""
    return "\n".join(CELL.join(str(cell) for cell in row) for row in (columns, *rows))


@dataclass(frozen=True)
class WorkflowResource:
    """A document, table or program. `text` is what rules and models read; of a table it has `|` between cells."""

    name: str
    form: str
    text: str

    @property
    def file_name(self) -> str:
        return f"{self.name.replace(' ', '_')}{SUFFIXES[self.form]}"

    def to_bytes(self) -> bytes:
        """Return the resource as a file of its form: Markdown, CSV, a real .xlsx workbook, Python."""
        if self.form == XLSX:
            return _workbook(self.text)
        if self.form == CSV:
            file = io.StringIO()
            csv.writer(file, lineterminator="\n").writerows(line.split(CELL) for line in self.text.splitlines())
            return file.getvalue().encode()
        return self.text.encode()

    def save(self, folder: Path) -> Path:
        """Write the file into a folder and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.file_name
        path.write_bytes(self.to_bytes())
        return path

    @classmethod
    def read(cls, path: Path) -> WorkflowResource:
        """Read a file as a resource; its suffix says what it is. A `|` within a cell of a table becomes `/`."""
        form = FORM_OF_SUFFIX.get(path.suffix.lower())
        if form is None:
            raise UserError(f"'{path}' is none of {', '.join(FORM_OF_SUFFIX)}; convert it into one of these first.")
        if form == XLSX:
            return cls(path.stem, form, _workbook_text(path))
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"'{path}' cannot be read as text: {error}.") from None
        if form == CSV:
            text = "\n".join(CELL.join(map(plain_cell, row)) for row in csv.reader(io.StringIO(text)))
        return cls(path.stem, form, text)


def _openpyxl() -> Any:
    try:
        import openpyxl
    except ImportError:
        raise UserError("Workbooks (.xlsx) need openpyxl: pip install 'practicum[rubric]'.") from None
    return openpyxl


def _workbook(text: str) -> bytes:
    book = _openpyxl().Workbook()
    for line in text.splitlines():
        book.active.append([_cell_value(cell) for cell in line.split(CELL)])
        for cell in book.active[book.active.max_row]:
            if cell.data_type == "f":  # what a worker wrote is text: a formula is never run where the file is opened
                cell.data_type = "s"
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def _cell_value(cell: str) -> float | str:
    """A number where writing it as text gives the cell again, which `007` does not; else the text."""
    if NUMBER_CELL.fullmatch(cell):
        return float(cell)
    return CONTROL.sub("", cell)


def _workbook_text(path: Path) -> str:
    """The sheets of a workbook; where there are several, the name of each stands before it, as a heading."""
    try:
        book = _openpyxl().load_workbook(path, read_only=True, data_only=True)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"'{path}' cannot be read as a workbook: {error}.") from None
    try:
        texts = [(sheet.title, _sheet_text(sheet)) for sheet in book.worksheets]
    finally:
        book.close()
    filled = [(title, text) for title, text in texts if text]
    if len(filled) < 2:
        return "".join(text for _, text in filled)
    return "\n".join(f"# {title}\n{text}" for title, text in filled)


def _sheet_text(sheet: Any) -> str:
    rows = [[_cell_text(cell) for cell in row] for row in sheet.iter_rows(values_only=True)]
    return "\n".join(CELL.join(row).rstrip(CELL) if not any(row[1:]) else CELL.join(row) for row in rows)


def _cell_text(value: object) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else plain_cell(str(value))


def plain_cell(text: str) -> str:
    """Return the text of a cell without what would end it: `|` becomes `/`, a line break a space."""
    return " ".join(text.replace(CELL, "/").splitlines()) if CELL in text or "\n" in text or "\r" in text else text


class TaskStatus(enum.StrEnum):
    """The state of a task of a workflow."""

    PENDING = "pending"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True)
class WorkflowTask:
    """One piece of work: what it reads, what it writes, what must be done before, and what it may take."""

    name: str
    description: str = ""
    dependencies: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    """Names of resources that it reads."""
    output: str = ""
    """Name of the resource that it writes."""
    form: str = DOCUMENT
    hours: float = 1.0
    cost: float = 0.0
    status: TaskStatus = TaskStatus.PENDING


@dataclass(frozen=True)
class WorkflowMessage:
    """A message between a manager, a stakeholder and workers; `kind` is question, answer, rubric or report."""

    sender: str
    receiver: str
    content: str
    kind: str = "message"
    timestep: int = 0


@dataclass(frozen=True)
class ManagerAction:
    """What a manager did: `ask`, with the question, or `generate`."""

    kind: str
    content: str = ""


@dataclass
class Workflow:
    """A workflow and its state. Only `WorkflowEngine` and phases change it."""

    name: str
    goal: str
    tasks: dict[str, WorkflowTask] = field(default_factory=dict)
    resources: dict[str, WorkflowResource] = field(default_factory=dict)
    """Inputs at first; workers add what they write."""
    deliverable: str = ""
    """Name of the output that rubrics score; "" is every output of a task."""
    messages: list[WorkflowMessage] = field(default_factory=list)
    actions: list[ManagerAction] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    timestep: int = 0
    hours_spent: float = 0.0
    cost_spent: float = 0.0

    def __post_init__(self) -> None:
        names = set(self.tasks)
        for task in self.tasks.values():
            unknown = set(task.dependencies) - names
            if unknown:
                raise UserError(f"Workflow '{self.name}': task '{task.name}' depends on unknown {sorted(unknown)}.")
        if self._has_cycle():
            raise UserError(f"Workflow '{self.name}': the dependencies of its tasks have a cycle.")

    def _has_cycle(self) -> bool:
        done: set[str] = set()
        while len(done) < len(self.tasks):
            ready = [t.name for t in self.tasks.values() if t.name not in done and done.issuperset(t.dependencies)]
            if not ready:
                return True
            done.update(ready)
        return False

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the resources that tasks write."""
        return tuple(task.output for task in self.tasks.values() if task.output)

    @property
    def task_input(self) -> str:
        """The goal and the input resources as one text."""
        written = set(self.outputs)
        inputs = [resource.text for name, resource in self.resources.items() if name not in written]
        return "\n".join([self.goal, *inputs])

    @property
    def candidate_output(self) -> str:
        """The text that rubrics score: the deliverable, or every output."""
        names = (self.deliverable,) if self.deliverable else self.outputs
        return "\n".join(self.resources[name].text for name in names if name in self.resources)

    @property
    def is_complete(self) -> bool:
        return all(task.status is TaskStatus.COMPLETED for task in self.tasks.values())

    def ready_tasks(self) -> list[WorkflowTask]:
        """Return the tasks that can run: pending or ready, with all dependencies completed."""
        done = {task.name for task in self.tasks.values() if task.status is TaskStatus.COMPLETED}
        waiting = (TaskStatus.PENDING, TaskStatus.READY)
        return [t for t in self.tasks.values() if t.status in waiting and done.issuperset(t.dependencies)]

    def copy(self) -> Workflow:
        """Return a copy whose state can change without changing this one."""
        return replace(
            self,
            tasks=dict(self.tasks),
            resources=dict(self.resources),
            messages=list(self.messages),
            actions=list(self.actions),
            metadata=dict(self.metadata),
        )


class CommunicationService:
    """Messages of a workflow: sent, read once by their receiver, kept in order."""

    def __init__(self) -> None:
        self.messages: list[WorkflowMessage] = []
        self._read: dict[str, int] = {}

    def send(self, sender: str, receiver: str, content: str, kind: str = "message", timestep: int = 0) -> None:
        self.messages.append(WorkflowMessage(sender, receiver, content, kind, timestep))

    def unread(self, receiver: str) -> list[WorkflowMessage]:
        """Return the messages to a receiver that it has not read, and mark them as read."""
        first = self._read.get(receiver, 0)
        self._read[receiver] = len(self.messages)
        return [message for message in self.messages[first:] if message.receiver in (receiver, "all")]
