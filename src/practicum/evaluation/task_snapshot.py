"""Snapshots: the tasks of an environment as a frozen, hashed registry file."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from practicum.data.run_folder import write_atomic
from practicum.data.tasks import registry_hash
from practicum.environments.web.real_tasks import VERSION, package_version, real_tasks, registry_entries
from practicum.registry import environment_maker
from practicum.task import plain

REAL = "real"
DEFAULT_NUM_TASKS = 300


def snapshot_real(task_version: str = VERSION, site: str | None = None) -> dict[str, Any]:
    """Return REAL's tasks as a registry with HALO's keys, sorted by name; `site` keeps those of one site."""
    tasks = [task for task in real_tasks(task_version) if site in (None, task.fields["site"])]
    return {
        "agisdk_version": package_version(),
        "counts_by_site": dict(sorted(Counter(str(task.fields["site"]) for task in tasks).items())),
        "generated_at": _now(),
        "task_version": task_version,
        "hash": registry_hash(tasks),
        "tasks": registry_entries(tasks),
    }


def snapshot_environment(
    environment: str, split: str = "test", count: int = DEFAULT_NUM_TASKS, seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the first tasks of an environment's split as a registry."""
    tasks = environment_maker(environment, None, options)[0]().tasks(split, count, seed)
    return {
        "environment": environment,
        "split": split,
        "seed": seed,
        "generated_at": _now(),
        "hash": registry_hash(tasks),
        "tasks": [
            {"id": task.id, "environment": task.environment, "split": task.split, "hash": task.hash,
             "fields": dict(task.fields)}
            for task in tasks
        ],
    }  # fmt: skip


def write_snapshot(path: Path, registry: Mapping[str, Any]) -> None:
    """Write a registry as a file for `--task_registry`."""
    write_atomic(path, (json.dumps(registry, indent=1, ensure_ascii=False, default=plain) + "\n").encode())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
