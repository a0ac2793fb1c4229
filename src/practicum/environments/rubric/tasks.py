"""Tasks of the environment `rubric`: seeded instances of families, split by family."""

from __future__ import annotations

from collections.abc import Sequence

from practicum.environments.rubric.families.base import Family
from practicum.environments.rubric.families.catalogue import families_of, family_named
from practicum.environments.rubric.instances import LEVELS, make_instance
from practicum.environments.rubric.menu import rubric_text
from practicum.environments.rubric.stakeholder import Stakeholder
from practicum.errors import UserError
from practicum.task import Task

ENVIRONMENT = "rubric"
MAX_INSTANCES = 100_000
"""Instances per family and level from which tasks are drawn; seeds give others."""


def generated_tasks(
    split: str, count: int, seed: int = 0, levels: Sequence[int] = LEVELS, families: Sequence[str] = ()
) -> list[Task]:
    """Return tasks of the families of a split, in turn; `families` names some of them instead."""
    for level in levels:
        if level not in LEVELS:
            raise UserError(f"rubric has no level '{level}'; the levels are {', '.join(map(str, LEVELS))}.")
    if not levels:
        raise UserError("rubric needs at least one level.")
    chosen = [family for family in map(family_named, families) if family.split == split] or families_of(split)
    tasks = []
    for index in range(count):
        round_number = index // len(chosen)
        level = levels[round_number % len(levels)]
        tasks.append(task_of(chosen[index % len(chosen)], seed * MAX_INSTANCES + round_number, level, split))
    return tasks


def task_of(family: Family, number: int, level: int, split: str) -> Task:
    """Return the task of one instance. The rubric is there for readers and converters; an agent never sees it."""
    instance = make_instance(family.name, number, level)
    fields = {
        "family": family.name,
        "field": family.field,
        "number": number,
        "level": level,
        "question": f"{instance.workflow.goal}: {Stakeholder.of(instance).request()}",
        "rubric": rubric_text(instance.preferences),
    }
    return Task(f"{family.name} {number}.{level}", ENVIRONMENT, split, fields)
