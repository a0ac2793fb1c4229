"""Which tasks a run plays: of a split or a registry file, narrowed to a subset, sampled by a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from practicum.data.export import site_of
from practicum.data.jsonl import read_lines
from practicum.environment import SPLITS, Environment
from practicum.errors import UserError
from practicum.task import Task, content_hash

WIDEST_SEARCH = 8192
"""Tasks of a generated world that are looked through at most for an id or a subset."""
SAMPLED_FROM = 256
"""Tasks of a split that a sample is drawn from unless --tasks says otherwise."""
SUBSET_FIELDS = ("level", "subset", "task_type", "difficulty")
"""Fields whose value alone names a subset; any other is asked for as FIELD=VALUE."""
NAMES = ("id", "task_name", "task_id")
ABOUT = (*NAMES, "task_type", "environment", "split", "hash", "fields")
"""Keys of a registry's entry that are not a task's own fields."""


@dataclass(frozen=True)
class TaskEntry:
    """A task as a registry names it: whole where `task` is there, otherwise by its id alone."""

    id: str
    split: str | None = None
    task: Task | None = None


@dataclass(frozen=True)
class TaskRegistry:
    """A file of tasks, and subsets of them by name."""

    path: Path
    entries: tuple[TaskEntry, ...]
    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def tasks(self, environment: Environment, split: str, seed: int) -> list[Task]:
        """Its tasks, those named by id alone looked up in the environment."""
        bare = [entry for entry in self.entries if entry.task is None]
        found: dict[str, Task] = {}
        for where in SPLITS:
            ids = [entry.id for entry in bare if (entry.split or split) == where]
            found |= find_tasks(environment, ids, where, seed)
        missing = [entry.id for entry in bare if entry.id not in found]
        if missing:
            listed = ", ".join(f"'{name}'" for name in missing[:5]) + (" …" if len(missing) > 5 else "")
            raise UserError(
                f"'{self.path}': environment '{environment.name}' has no '{split}' task {listed} "
                f"({len(missing)} of {len(self.entries)}); give its --split and --seed, or list tasks with fields."
            )
        return [entry.task or found[entry.id] for entry in self.entries]


def registry_hash(tasks: Iterable[Task]) -> str:
    """Names a list of tasks by ids and contents; a snapshot carries it as `hash`."""
    return content_hash([[task.id, task.hash] for task in tasks])


def read_registry(path: Path, environment: str, split: str) -> TaskRegistry:
    """A JSON file: {"tasks": [...], "hash": ..., "subsets": {...}}, or a plain list, of task objects or ids."""
    try:
        if not path.is_file():
            raise UserError(f"Cannot read the task registry '{path}': there is no such file.")
        whole = json.loads(b"".join(read_lines(path)).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"Task registry '{path}' is not UTF-8 text (byte {error.start}).") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"Task registry '{path}' is not JSON: {error}.") from None
    listed = whole.get("tasks") if isinstance(whole, dict) else whole
    if not isinstance(listed, list) or not listed:
        raise UserError(f"Task registry '{path}' needs a list of tasks, or an object with such a list under 'tasks'.")
    entries = tuple(_entry(path, number, item, environment, split) for number, item in enumerate(listed))
    seen: set[str] = set()
    for number, entry in enumerate(entries):
        if entry.id in seen:
            raise UserError(f"Task registry '{path}', task {number}: the id '{entry.id}' is used twice.")
        seen.add(entry.id)
    if isinstance(whole, dict) and "hash" in whole:
        made = registry_hash(entry.task for entry in entries if entry.task is not None)
        if whole["hash"] != made:
            raise UserError(
                f"Task registry '{path}' says its hash is {whole['hash']} but it is {made}: it was changed."
            )
    subsets = whole.get("subsets", {}) if isinstance(whole, dict) else {}
    if not isinstance(subsets, dict) or not all(isinstance(items, list) for items in subsets.values()):
        raise UserError(f"Task registry '{path}': 'subsets' must map names to lists.")
    return TaskRegistry(path, entries, {name: [str(item) for item in items] for name, items in subsets.items()})


def find_tasks(environment: Environment, ids: Sequence[str], split: str, seed: int) -> dict[str, Task]:
    """Tasks of a split by their ids, as far as it has them. Generated worlds are looked through under two seeds."""
    wanted, found = set(ids), dict[str, Task]()
    for number in dict.fromkeys((0, seed)):
        if wanted - found.keys():
            for task in gather(environment, split, number, len(wanted), lambda task: task.id in wanted):
                found.setdefault(task.id, task)
    return found


def gather(
    environment: Environment, split: str, seed: int, count: int, wanted: Callable[[Task], bool] = lambda task: True
) -> list[Task]:
    """The first `count` tasks of a split that are wanted, or as many as there are."""
    asked = count
    matching: list[Task] = []
    while count:
        try:
            tasks = environment.tasks(split, asked, seed)
        except UserError:
            if asked == count:
                raise
            break  # a world that has run out of tasks says so: what it had is what there is
        matching = [task for task in tasks if wanted(task)]
        if len(matching) >= count or len(tasks) < asked or asked >= WIDEST_SEARCH:
            break
        asked = min(4 * asked, WIDEST_SEARCH)
    return matching[:count]


def matches(task: Task, item: str) -> bool:
    """Whether a word of a subset names this task."""
    name, equals, value = item.partition("=")
    if equals and name in task.fields:
        return _text(task.fields[name]) == value
    fields = (_text(task.fields[field]) for field in SUBSET_FIELDS if field in task.fields)
    return item in (task.id, task.environment, site_of(task), *fields)


def subset_items(subset: str, registry: TaskRegistry | None) -> list[str]:
    """The words of a subset: those that a registry lists under its name, or its own, between commas."""
    if registry is not None and subset in registry.subsets:
        return list(registry.subsets[subset])
    return [item.strip() for item in subset.split(",") if item.strip()]


def select(
    environment: Environment,
    *,
    split: str,
    seed: int,
    count: int | None = None,
    sample_size: int | None = None,
    subset: str | None = None,
    registry: TaskRegistry | None = None,
) -> list[Task]:
    """The tasks of a run, in the order of the split or registry.

    `count` takes the first so many; `sample_size` draws so many by the seed, or all where there are fewer. Without a
    registry the default is 20 tasks, or a sample of the first 256.
    """
    items = subset_items(subset, registry) if subset is not None else []
    if subset is not None and not items:
        raise UserError("--subset is empty; name an environment, a site, a level, FIELD=VALUE, or task ids.")

    def wanted(task: Task) -> bool:
        return not items or any(matches(task, item) for item in items)

    if registry is not None:
        pool = [task for task in registry.tasks(environment, split, seed) if wanted(task)][:count]
    else:
        default = 20 if sample_size is None else max(SAMPLED_FROM, sample_size)
        pool = gather(environment, split, seed, count or default, wanted)
    for item in items:
        if not any(matches(task, item) for task in pool):
            raise UserError(f"--subset: no task of this run is named by '{item}' (an id, environment, site, level or "
                            "FIELD=VALUE).")  # fmt: skip
    for task in pool:
        if registry is not None and not environment.plays(task):
            raise UserError(
                f"Task '{task.id}' belongs to environment '{task.environment}', not to '{environment.name}'; "
                f"narrow the registry with --subset {environment.name}."
            )
        if not task.id.isprintable():
            raise UserError(f"The task id {task.id!r} holds characters that cannot be printed; rename the task.")
    if len({task.id for task in pool}) != len(pool):
        raise UserError("Two of these tasks have the same id; ids must be unique.")
    if sample_size is None or sample_size >= len(pool):
        return pool
    places = random.Random(f"task-sample/{seed}").sample(range(len(pool)), sample_size)
    return [pool[place] for place in sorted(places)]


def _entry(path: Path, number: int, item: Any, environment: str, split: str) -> TaskEntry:
    place = f"Task registry '{path}', task {number}"
    if isinstance(item, str):
        item = {"id": item}
    if not isinstance(item, dict):
        raise UserError(f"{place}: expected an object or an id, found {type(item).__name__}.")
    name = next((item[key] for key in NAMES if isinstance(item.get(key), str) and item[key]), None)
    if name is None:
        raise UserError(f"{place} lacks 'id' (it has: {', '.join(map(str, item)) or 'nothing'}).")
    own_split = item.get("split")
    if own_split is not None and own_split not in SPLITS:
        raise UserError(f"{place}: 'split' must be one of {', '.join(SPLITS)}.")
    fields = item.get("fields", {key: value for key, value in item.items() if key not in ABOUT})
    if not isinstance(fields, dict):
        raise UserError(f"{place}: 'fields' must be an object.")
    if "fields" not in item and not fields:
        return TaskEntry(name, own_split)
    try:
        task = Task(name, str(item.get("environment") or environment), own_split or split, fields)
    except ValueError as error:
        raise UserError(f"{place}: 'fields' cannot be kept as JSON: {error}.") from None
    if item.get("hash", task.hash) != task.hash:
        raise UserError(f"{place}: '{name}' does not match its hash: it was changed.")
    return TaskEntry(name, own_split, task)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
