"""A panel: a frozen list of tasks and seeds, named by its content. Scores on one panel can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from practicum.data import store
from practicum.data.attempts import Attempt, plan_attempts
from practicum.errors import UserError
from practicum.task import Task, content_hash, plain

PANEL = "practicum panel 1"


@dataclass(frozen=True)
class Panel:
    """Tasks, the seed that all attempts at them derive from, and the rules they are played under.

    Rules are what changes a score without changing a task: turns, tools, the reward. How many attempts a policy gets is
    not part of a panel: a mean over four is compared with a mean over one.
    """

    tasks: tuple[Task, ...]
    seed: int
    rules: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({task.id for task in self.tasks}) != len(self.tasks):
            raise UserError("A panel holds every task once; two of these have the same id.")

    @cached_property
    def hash(self) -> str:
        listed = [[task.id, task.hash] for task in self.tasks]
        return content_hash([listed, self.seed, *([dict(self.rules)] if self.rules else [])])

    def attempts(self, each: int = 1) -> list[Attempt]:
        """Attempt k at a task has the same seeds whoever is examined and however many follow."""
        return plan_attempts(self.tasks, each, self.seed, "panel/")

    def write(self, path: Path) -> None:
        """The panel as a file, which is also a task registry."""
        tasks = [
            {"id": task.id, "environment": task.environment, "split": task.split, "hash": task.hash,
             "fields": dict(task.fields)}
            for task in self.tasks
        ]  # fmt: skip
        whole = {"format": PANEL, "panel": self.hash, "seed": self.seed, "rules": dict(self.rules), "tasks": tasks}
        store.write_atomic(path, (json.dumps(whole, indent=1, ensure_ascii=False, default=plain) + "\n").encode())


def read_panel(path: Path) -> Panel:
    """A panel from its file, if that is still what it was when it was written."""
    try:
        whole = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"Cannot read the panel '{path}': {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"Panel '{path}' is not JSON: {error}.") from None
    try:
        if whole["format"] != PANEL:
            raise ValueError(f"its format is '{whole['format']}'")
        tasks = tuple(Task(t["id"], t["environment"], t["split"], t["fields"]) for t in whole["tasks"])
        panel = Panel(tasks, whole["seed"], whole["rules"])
        said, made = whole["panel"], panel.hash
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{path}' is not a panel ({type(error).__name__}: {error}); `practicum eval --out` writes one."
        ) from None
    if said != made:
        raise UserError(f"Panel '{path}' says it is {said} but it is {made}: it was changed.")
    return panel
