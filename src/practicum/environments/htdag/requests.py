"""Requests drawn from templates, each with its hidden requirement graph; the panel of 100."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from practicum.environments.htdag.task_dag import TaskDAG, TaskNode
from practicum.environments.htdag.templates import (
    LEVELS,
    MENTIONED,
    PATTERNS,
    TEMPLATES,
    RequestTemplate,
    drawn_templates,
)
from practicum.environments.htdag.vocabulary import PHRASES, RECIPES, SLOTS, STEP_SECONDS, Item, is_step, recipe
from practicum.errors import UserError
from practicum.task import Task, content_hash

ARTICLE = re.compile(r"\ba(?= [aeiou])")
ENVIRONMENT = "htdag"
ROOT = "0"
"""Id of the task that is the request."""
PANEL_COUNTS: Mapping[str, int] = {"simple": 25, "medium": 35, "complex": 30, "edge": 10}
MAX_FAILED_DRAWS = 2000
"""Draws in a row without a new request after which a split counts as exhausted."""


@dataclass(frozen=True, slots=True)
class PlanGoal:
    """One task of a request; `after` are positions (from 0) of the tasks before it."""

    type: str
    slot: str
    modifiers: tuple[str, ...] = ()
    after: tuple[int, ...] = ()


def draw(template: RequestTemplate, rng: random.Random) -> Mapping[str, Any]:
    """Return the fields of one request of a template: its text and the hidden tasks."""
    pattern = PATTERNS[template.pattern]
    chosen: dict[str, list[str]] = {}
    slots = []
    for goal in template.goals:
        if goal.kind not in chosen:
            chosen[goal.kind] = rng.sample(SLOTS[goal.kind], len(template.goals))
        slots.append(chosen[goal.kind].pop())
    phrases = []
    for goal, slot in zip(template.goals, slots, strict=True):
        modifier = "" if goal.modifier in ("", MENTIONED) else f"{goal.modifier} "
        phrases.append(rng.choice(PHRASES[goal.type]).format(m=modifier, x=slot))
    text = pattern.text
    if "{0&1}" in text:
        text = text.replace("{0&1}", phrases[0].replace(slots[0], f"{slots[0]} and {slots[1]}"))
    request = ARTICLE.sub("an", text.format(*phrases))
    goals = [
        {
            "type": goal.type,
            "slot": slot,
            "modifiers": [goal.modifier] if goal.modifier else [],
            "after": list(after),
        }
        for goal, slot, after in zip(template.goals, slots, pattern.after, strict=True)
        if goal.modifier != MENTIONED
    ]
    fields = {"request": request, "goals": goals}
    about = {"template": template.id, "domain": template.domain, "level": template.level}
    # Requests of one template are not independent: evaluation takes `goal` as their cluster.
    return {**fields, **about, "goal": template.id}


def goals_of(fields: Mapping[str, Any]) -> tuple[PlanGoal, ...]:
    """Return the tasks of a request's fields; UserError where there are none."""
    try:
        goals = tuple(
            PlanGoal(
                str(goal["type"]), str(goal["slot"]), tuple(goal.get("modifiers", ())), tuple(goal.get("after", ()))
            )
            for goal in fields["goals"]
        )
        for index, goal in enumerate(goals):
            is_valid = goal.type in RECIPES or is_step(goal.type)
            if not is_valid or any(not 0 <= position < index for position in goal.after):
                raise ValueError(goal)
            for modifier in goal.modifiers:
                recipe(goal.type, (modifier,))
    except (KeyError, TypeError, ValueError):
        raise UserError(
            "An htdag task needs 'request' and 'goals', a list of {\"type\": ..., \"slot\": ...} with types of the "
            "vocabulary and 'after' with positions of earlier goals."
        ) from None
    return goals


def root_items(goals: Sequence[PlanGoal]) -> tuple[Item, ...]:
    """Return the decomposition of the request into its tasks."""
    return tuple(Item(goal.type, goal.slot, tuple(position + 1 for position in goal.after)) for goal in goals)


def requirement_graph(request: str, goals: Sequence[PlanGoal]) -> TaskDAG:
    """Return the plan that a request needs: every task decomposed into steps, nothing more.

    The ids are those of the expert's plan: `0` is the request, `2.1` the first part of its second task.
    """
    dag = TaskDAG()
    dag.add_task(TaskNode(ROOT, "request", request))
    _add_parts(dag, ROOT, root_items(goals), "", {str(i): goal.modifiers for i, goal in enumerate(goals, 1)})
    return dag


def _add_parts(
    dag: TaskDAG, parent: str, items: Sequence[Item], slot: str, modifiers: Mapping[str, tuple[str, ...]]
) -> None:
    ids = [child_id(parent, position) for position in range(1, len(items) + 1)]
    for task_id, item in zip(ids, items, strict=True):
        dag.add_task(plan_node(task_id, item.type, item.slot or slot), parent)
    for task_id, item in zip(ids, items, strict=True):
        for position in item.after:
            dag.add_dependency(ids[position - 1], task_id)
        if not is_step(item.type):
            _add_parts(dag, task_id, recipe(item.type, modifiers.get(task_id, ())), item.slot or slot, {})


def child_id(parent: str, position: int) -> str:
    """Return the id of a part: `2` of the request's second, `2.1` of its first."""
    return str(position) if parent == ROOT else f"{parent}.{position}"


def plan_node(task_id: str, type: str, slot: str, description: str = "") -> TaskNode:
    """Return a node of a plan with the simulated duration of its type."""
    label = description or f"{type} {slot}".strip()
    return TaskNode(task_id, type, label, duration=STEP_SECONDS.get(type), metadata={"slot": slot})


def draw_requests(split: str, count: int, seed: int = 0, levels: Sequence[str] = LEVELS) -> list[Task]:
    """Return the first `count` distinct requests of a split, from its templates in turn.

    The list for a smaller count is the beginning of that for a larger one.
    """
    tasks: list[Task] = []
    for task in _drawn(split, seed, tuple(levels)):
        if len(tasks) >= count:
            break
        tasks.append(task)
    if len(tasks) < count:
        raise UserError(f"htdag has only {len(tasks)} requests in '{split}' with levels {list(levels)}; ask for fewer.")
    return tasks


def _drawn(split: str, seed: int, levels: tuple[str, ...]) -> Iterator[Task]:
    source = (*TEMPLATES, *drawn_templates()) if split == "train" else TEMPLATES
    templates = [template for template in source if template.split == split and template.level in levels]
    if not templates:
        raise UserError(f"htdag has no requests in '{split}' with levels {list(levels)}; it has train, val, test.")
    rng = random.Random(f"htdag/{split}/{seed}/{'-'.join(levels)}")
    seen: set[str] = set()
    failed = 0
    while failed < MAX_FAILED_DRAWS:
        for template in rng.sample(templates, len(templates)):
            fields = draw(template, rng)
            if fields["request"] in seen:
                failed += 1
                continue
            failed = 0
            seen.add(fields["request"])
            yield Task(f"{template.id}-{content_hash(fields['request'])[:8]}", ENVIRONMENT, split, fields)


@cache
def _panel() -> tuple[Task, ...]:
    return tuple(task for level, count in PANEL_COUNTS.items() for task in draw_requests("test", count, 0, (level,)))


def create_benchmark_tasks() -> list[Task]:
    """Return the panel, all distinct, from held-out templates: 25 simple, 35 medium, 30 complex, 10 edge cases."""
    return list(_panel())
