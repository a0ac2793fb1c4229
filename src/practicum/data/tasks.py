"""Select the tasks of a run: of a split or a registry file, narrowed to a subset, sampled by a seed."""

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

MAX_SEARCHED_TASKS = 8192
"""Tasks of a generated split that are searched for an id or a subset, at most."""
DEFAULT_POOL_SIZE = 256
"""Tasks of a split that a sample is drawn from, unless --tasks sets another number."""
SUBSET_FIELDS = ("level", "subset", "task_type", "difficulty")
"""Fields whose value alone names a subset; for any other write FIELD=VALUE."""
ID_KEYS = ("id", "task_name", "task_id")
ENTRY_KEYS = (*ID_KEYS, "task_type", "environment", "split", "hash", "fields")
"""Keys of a registry entry that are not fields of the task."""


@dataclass(frozen=True)
class TaskEntry:
    """An entry of a registry: a complete `task`, or only the id of one."""

    id: str
    split: str | None = None
    task: Task | None = None


@dataclass(frozen=True)
class TaskRegistry:
    """The tasks of a file, and named subsets of them."""

    path: Path
    entries: tuple[TaskEntry, ...]
    subsets: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def tasks(self, environment: Environment, split: str, seed: int) -> list[Task]:
        """Its tasks; entries that are only an id are looked up in the environment."""
        id_only = [entry for entry in self.entries if entry.task is None]
        tasks: dict[str, Task] = {}
        for name in SPLITS:
            ids = [entry.id for entry in id_only if (entry.split or split) == name]
            tasks |= find_tasks(environment, ids, name, seed)
        missing = [entry.id for entry in id_only if entry.id not in tasks]
        if missing:
            listed = ", ".join(f"'{name}'" for name in missing[:5]) + (" …" if len(missing) > 5 else "")
            raise UserError(
                f"'{self.path}': environment '{environment.name}' has no '{split}' task {listed} "
                f"({len(missing)} of {len(self.entries)}); give its --split and --seed, or list tasks with fields."
            )
        return [entry.task or tasks[entry.id] for entry in self.entries]


def registry_hash(tasks: Iterable[Task]) -> str:
    """A hash of the ids and contents of tasks; a registry file may hold it as `hash`."""
    return content_hash([[task.id, task.hash] for task in tasks])


def read_registry(path: Path, environment: str, split: str) -> TaskRegistry:
    """Read a JSON file {"tasks": [...], "hash": ..., "subsets": {...}}, or a plain list, of task objects or ids."""
    try:
        if not path.is_file():
            raise UserError(f"Cannot read the task registry '{path}': there is no such file.")
        content = json.loads(b"".join(read_lines(path)).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"Task registry '{path}' is not UTF-8 text (byte {error.start}).") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"Task registry '{path}' is not JSON: {error}.") from None
    items = content.get("tasks") if isinstance(content, dict) else content
    if not isinstance(items, list) or not items:
        raise UserError(f"Task registry '{path}' needs a list of tasks, or an object with such a list under 'tasks'.")
    entries = tuple(_entry(path, index, item, environment, split) for index, item in enumerate(items))
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if entry.id in seen:
            raise UserError(f"Task registry '{path}', task {index}: the id '{entry.id}' is used twice.")
        seen.add(entry.id)
    if isinstance(content, dict) and "hash" in content:
        actual_hash = registry_hash(entry.task for entry in entries if entry.task is not None)
        if content["hash"] != actual_hash:
            raise UserError(
                f"Task registry '{path}' says its hash is {content['hash']} but it is {actual_hash}: it was changed."
            )
    subsets = content.get("subsets", {}) if isinstance(content, dict) else {}
    if not isinstance(subsets, dict) or not all(isinstance(items, list) for items in subsets.values()):
        raise UserError(f"Task registry '{path}': 'subsets' must map names to lists.")
    return TaskRegistry(path, entries, {name: [str(item) for item in items] for name, items in subsets.items()})


def find_tasks(environment: Environment, ids: Sequence[str], split: str, seed: int) -> dict[str, Task]:
    """Tasks of a split by id, as far as it has them. Generated splits are searched under seed 0 and under `seed`."""
    wanted_ids, tasks = set(ids), dict[str, Task]()
    for split_seed in dict.fromkeys((0, seed)):
        if wanted_ids - tasks.keys():
            for task in gather(environment, split, split_seed, len(wanted_ids), lambda task: task.id in wanted_ids):
                tasks.setdefault(task.id, task)
    return tasks


def gather(
    environment: Environment, split: str, seed: int, count: int, is_wanted: Callable[[Task], bool] = lambda task: True
) -> list[Task]:
    """The first `count` tasks of a split that are wanted, or fewer if there are no more."""
    num_requested = count
    matching: list[Task] = []
    while count:
        try:
            tasks = environment.tasks(split, num_requested, seed)
        except UserError:
            if num_requested == count:
                raise
            break  # the environment has no more tasks: those of the last request are all there are
        matching = [task for task in tasks if is_wanted(task)]
        if len(matching) >= count or len(tasks) < num_requested or num_requested >= MAX_SEARCHED_TASKS:
            break
        num_requested = min(4 * num_requested, MAX_SEARCHED_TASKS)
    return matching[:count]


def matches(task: Task, item: str) -> bool:
    """Whether an item of a subset names this task."""
    name, equals, value = item.partition("=")
    if equals and name in task.fields:
        return _text(task.fields[name]) == value
    fields = (_text(task.fields[field]) for field in SUBSET_FIELDS if field in task.fields)
    return item in (task.id, task.environment, site_of(task), *fields)


def subset_items(subset: str, registry: TaskRegistry | None) -> list[str]:
    """The items of a subset: those that a registry lists under its name, or its own, separated by commas."""
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

    `count` takes the first tasks, `sample_size` draws a sample by the seed; each takes all where there are fewer.
    Without a registry the default is 20 tasks, or a sample of the first 256.
    """
    items = subset_items(subset, registry) if subset is not None else []
    if subset is not None and not items:
        raise UserError("--subset is empty; name an environment, a site, a level, FIELD=VALUE, or task ids.")

    def is_selected(task: Task) -> bool:
        return not items or any(matches(task, item) for item in items)

    if registry is not None:
        pool = [task for task in registry.tasks(environment, split, seed) if is_selected(task)][:count]
    else:
        default = 20 if sample_size is None else max(DEFAULT_POOL_SIZE, sample_size)
        pool = _without_repeats(gather(environment, split, seed, count or default, is_selected))
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
    indices = random.Random(f"task-sample/{seed}").sample(range(len(pool)), sample_size)
    return [pool[index] for index in sorted(indices)]


def _without_repeats(tasks: list[Task]) -> list[Task]:
    """Each task once: an environment that has fewer than requested may begin again with the first."""
    return list(dict.fromkeys(tasks))


def _entry(path: Path, index: int, item: Any, environment: str, split: str) -> TaskEntry:
    source = f"Task registry '{path}', task {index}"
    if isinstance(item, str):
        item = {"id": item}
    if not isinstance(item, dict):
        raise UserError(f"{source}: expected an object or an id, found {type(item).__name__}.")
    name = next((item[key] for key in ID_KEYS if isinstance(item.get(key), str) and item[key]), None)
    if name is None:
        raise UserError(f"{source} lacks 'id' (it has: {', '.join(map(str, item)) or 'nothing'}).")
    own_split = item.get("split")
    if own_split is not None and own_split not in SPLITS:
        raise UserError(f"{source}: 'split' must be one of {', '.join(SPLITS)}.")
    fields = item.get("fields", {key: value for key, value in item.items() if key not in ENTRY_KEYS})
    if not isinstance(fields, dict):
        raise UserError(f"{source}: 'fields' must be an object.")
    if "fields" not in item and not fields:
        return TaskEntry(name, own_split)
    try:
        task = Task(name, str(item.get("environment") or environment), own_split or split, fields)
    except ValueError as error:
        raise UserError(f"{source}: 'fields' cannot be kept as JSON: {error}.") from None
    if item.get("hash", task.hash) != task.hash:
        raise UserError(f"{source}: '{name}' does not match its hash: it was changed.")
    return TaskEntry(name, own_split, task)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
