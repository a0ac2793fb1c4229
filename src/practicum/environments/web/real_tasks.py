"""The tasks of the REAL benchmark, read from the installed package `agisdk`, which is not imported.

The package holds goals, addresses and evaluation scripts; the sites themselves are on the Internet.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from practicum.errors import UserError
from practicum.task import Task, content_hash

ENVIRONMENT = "real"
VERSION = "v2"
INSTALL = "pip install --no-deps agisdk==0.3.5"
SPLITS = ("train", "train", "train", "val", "test")
"""REAL has no split; ours is by the hash of a task's name: three fifths, a fifth, a fifth."""


@functools.cache
def package_folder(version: str = VERSION) -> Path:
    """Return the folder of a version of the tasks and their evaluation scripts."""
    spec = importlib.util.find_spec("agisdk")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"REAL's tasks come with the package agisdk: {INSTALL}.")
    folder = Path(next(iter(spec.submodule_search_locations))) / "REAL" / "browsergym" / "webclones" / version
    if not folder.is_dir():
        raise UserError(f"The installed agisdk has no tasks of version '{version}'.")
    return folder


def package_version() -> str:
    """Return the version of the installed package."""
    try:
        return importlib.metadata.version("agisdk")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def real_tasks(version: str = VERSION) -> tuple[Task, ...]:
    """Return all tasks of a version, sorted by name."""
    files = (package_folder(version) / "tasks").glob("*.json")
    return tuple(sorted((_task(path, version) for path in files), key=lambda task: task.id))


def _task(path: Path, version: str) -> Task:
    content = json.loads(path.read_bytes())
    website = content["website"]
    name = f"{version}.{content['id']}"
    fields = {
        "question": content["goal"],
        "site": website["id"],
        "url": website["url"].rstrip("/"),
        "task_type": website["id"],
        "difficulty": content["difficulty"],
        "challenge_type": content["challengeType"],
        "possible": content["possible"],
        "points": content["points"],
        "evals": content["evals"],
        "version": version,
    }
    return Task(name, ENVIRONMENT, split_of(name), fields)


def split_of(name: str) -> str:
    """Return the split of a task."""
    return SPLITS[int(content_hash(["real", name])[:8], 16) % len(SPLITS)]


def registry_entries(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Return the entries of a registry file: HALO's keys, and the whole task."""
    return [
        {
            "task_id": int(task.id.rpartition("-")[2]),
            "task_name": task.id,
            "task_type": task.fields["site"],
            "environment": task.environment,
            "split": task.split,
            "fields": dict(task.fields),
        }
        for task in tasks
    ]
