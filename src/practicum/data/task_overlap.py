"""Whether tasks that a policy is scored on are among those it was trained on, by their content."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from practicum.data.run_folder import write_atomic
from practicum.task import Task, content_hash

TRAIN_TASKS = "train_tasks.txt"
"""File of a run's folder: the hashes of its training tasks, one per line."""
IDENTITY_FIELDS = ("id", "task_id")


def task_content(task: Task) -> str:
    """A hash of a task's content, without its id, split and environment."""
    return content_hash({key: value for key, value in task.fields.items() if key not in IDENTITY_FIELDS})


def num_shared(tasks: Iterable[Task], hashes: Iterable[str]) -> int:
    """How many of the tasks have one of these hashes."""
    own_hashes = set(hashes)
    return sum(task_content(task) in own_hashes for task in tasks)


def write_train_tasks(folder: Path, tasks: Iterable[Task]) -> set[str]:
    """Note the training tasks in a run's folder; returns their hashes."""
    hashes = {task_content(task) for task in tasks}
    write_atomic(folder / TRAIN_TASKS, "".join(f"{task_hash}\n" for task_hash in sorted(hashes)).encode())
    return hashes


def read_train_tasks(folder: Path) -> set[str]:
    """The hashes of a run's training tasks; empty where it noted none."""
    try:
        return set((folder / TRAIN_TASKS).read_text().split())
    except (OSError, ValueError):
        return set()
