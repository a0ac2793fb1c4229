"""Episodes to run: which tasks, how many attempts at each, and the seeds of every attempt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from practicum.task import Task
from practicum.trajectory import Seeds


@dataclass(frozen=True)
class Attempt:
    """One episode to run: a task, the index of the attempt at it, and the seeds it runs under.

    Episodes of one `group` are compared with each other by group-relative estimators; "" stands for the task's id.
    """

    task: Task
    number: int
    seeds: Seeds
    group: str = ""


def derive_seed(*names: object) -> int:
    """Return a 63-bit seed made of names and numbers, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def plan_attempts(tasks: Iterable[Task], attempts_per_task: int, seed: int, label: str = "") -> list[Attempt]:
    """Return `attempts_per_task` attempts at every task, those of one task next to each other.

    Attempts at one task share the environment's seed and differ in the sampling seed. `label` sets the seeds and groups
    of one plan apart from those of another with the same seed.
    """
    planned = []
    for task in tasks:
        environment_seed = derive_seed("environment", seed, label, task.id)
        for number in range(attempts_per_task):
            sampling_seed = derive_seed("sampling", seed, label, task.id, number)
            planned.append(Attempt(task, number, Seeds(environment_seed, sampling_seed), f"{label}{task.id}"))
    return planned
