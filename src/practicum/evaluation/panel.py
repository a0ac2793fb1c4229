"""A panel: a frozen list of tasks and seeds, identified by a hash. Only scores on one panel can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from practicum.data.run_folder import write_atomic
from practicum.errors import UserError
from practicum.task import Task, content_hash, plain
from practicum.trajectory import Attempt, plan_attempts

PANEL_FORMAT = "practicum panel 1"


@dataclass(frozen=True)
class Panel:
    """Tasks, the seed that all attempts at them derive from, and the rules of their episodes.

    Rules are what changes a score without changing a task: turns, the reward, options of the environment. Options of
    the agent (tools, prompts, formats, roles, sampling) are not part of a panel, so that modes can be compared; nor is
    the number of attempts per task: a mean over four attempts can be compared with a mean over one.
    """

    tasks: tuple[Task, ...]
    seed: int
    rules: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({task.id for task in self.tasks}) != len(self.tasks):
            raise UserError("A panel contains every task once; two of these have the same id.")

    @cached_property
    def hash(self) -> str:
        tasks = [[task.id, task.hash] for task in self.tasks]
        return content_hash([tasks, self.seed, *([dict(self.rules)] if self.rules else [])])

    def attempts(self, each: int = 1) -> list[Attempt]:
        """`each` attempts per task. Attempt k has the same seeds for every policy and for any number of attempts."""
        return plan_attempts(self.tasks, each, self.seed, "panel/")

    def write(self, path: Path) -> None:
        """Write the panel as a file, which is also a task registry."""
        tasks = [
            {"id": task.id, "environment": task.environment, "split": task.split, "hash": task.hash,
             "fields": dict(task.fields)}
            for task in self.tasks
        ]  # fmt: skip
        content = {
            "format": PANEL_FORMAT,
            "panel": self.hash,
            "seed": self.seed,
            "rules": dict(self.rules),
            "tasks": tasks,
        }
        write_atomic(path, (json.dumps(content, indent=1, ensure_ascii=False, default=plain) + "\n").encode())


def read_panel(path: Path) -> Panel:
    """Read a panel; a file that was changed after it was written is refused."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"Cannot read the panel '{path}': {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"Panel '{path}' is not JSON: {error}.") from None
    try:
        if content["format"] != PANEL_FORMAT:
            raise ValueError(f"its format is '{content['format']}'")
        tasks = tuple(Task(t["id"], t["environment"], t["split"], t["fields"]) for t in content["tasks"])
        panel = Panel(tasks, content["seed"], content["rules"])
        recorded_hash = content["panel"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"'{path}' is not a panel ({type(error).__name__}: {error}); `practicum eval --out` writes one."
        ) from None
    if recorded_hash != panel.hash:
        raise UserError(f"Panel '{path}' has the hash {panel.hash}, not {recorded_hash} as it says: it was changed.")
    return panel
