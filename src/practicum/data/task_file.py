"""Task files: a JSON list, JSON lines or parquet, of objects with a question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from practicum.data.dataset_rows import read_dataset_rows
from practicum.errors import UserError
from practicum.task import Task

QUESTION_KEYS = ("question", "problem", "instruction", "messages")
"""Fields that may hold the question; the first that a row has is taken."""


def read_task_file(path: str | Path | Sequence[str | Path], environment: str, split: str) -> list[Task]:
    """Return the tasks of a file, or of several; fields beside the question go to the environment, its tools and its
    reward.

    A row's `id` must be unique; without one it is the file's name and the row's index.
    """
    tasks: list[Task] = []
    seen: set[str] = set()
    for file in task_files(path):
        rows = read_dataset_rows(file)
        if not rows:
            raise UserError(f"Dataset '{file}' is empty; it needs at least one object with a 'question'.")
        for index, (_, row) in enumerate(rows):
            task = _task(row, file, index, environment, split)
            if task.id in seen:
                raise UserError(f"Dataset '{file}', row {index}: the id '{task.id}' is used twice; ids must be unique.")
            seen.add(task.id)
            tasks.append(task)
    return tasks


def task_files(value: object) -> list[Path]:
    """The files that a path or a list of paths names; UserError for anything else."""
    values = [value] if isinstance(value, str | Path) else value
    if not isinstance(values, list | tuple) or not values or not all(isinstance(path, str | Path) for path in values):
        raise UserError(f"Task files must be the path of a file or a list of paths, not {value!r}.")
    return [Path(path).expanduser() for path in values]


def _task(row: Any, path: Path, index: int, environment: str, split: str) -> Task:
    if not isinstance(row, dict):
        raise UserError(f"Dataset '{path}', row {index}: expected an object, found {type(row).__name__}.")
    key = next((k for k in QUESTION_KEYS if k in row), None)
    if key is None:
        present = ", ".join(map(str, row)) or "nothing"
        raise UserError(f"Dataset '{path}', row {index} lacks 'question' (it has: {present}); add that field.")
    if key != "messages" and not (isinstance(row[key], str) and row[key].strip()):
        raise UserError(f"Dataset '{path}', row {index}: '{key}' must be a non-empty text.")
    fields = {**row, "question": row[key]} if key in ("problem", "instruction") else row
    try:
        return Task(str(row.get("id", f"{path.stem}-{index}")), environment, split, fields)
    except ValueError:
        raise UserError(
            f"Dataset '{path}', row {index} holds NaN or Infinity, which are not JSON; write null or a number."
        ) from None
