"""Files of experiments, as HALO writes them: an experiment's keys become flags of `practicum collect` and `eval`.

The file has `defaults`, a list `experiments` and `task_subsets`. `mode: NAME` takes over the keys of another
experiment. A worker model may be overridden from outside: HALO_WORKER_BACKEND, HALO_VLLM_URL, HALO_WORKER_MODEL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from practicum.errors import UserError, did_you_mean

DEFAULT_PATH = Path("configs/experiments.yaml")
"""Where the commands look if they are not given a file."""
DESCRIPTIVE = ("name", "description", "mode", "notes", "expected_success", "expected_steps")
"""Keys that change nothing by themselves."""
HIERARCHY = (
    "use_manager", "use_cache", "use_macros", "manager_warm_start", "enable_recovery_policies", "always_call_manager",
)  # fmt: skip
MANAGER = ("manager_model", "manager_backend", "manager_base_url")
SCRIPTED_MANAGER = "scripted"
"""The `manager_model` that is the environment's own script."""
DEFAULT_MANAGER = "gpt-4o"
WORKER = ("worker_model", "adapter", "qwen_backend", "qwen_base_url")
SERVER_BACKENDS = {"vllm": "http://localhost:8000/v1", "openai": "https://api.openai.com/v1"}
"""Backends that are a server, with the URL used where neither the file nor an environment variable sets one."""
BACKENDS = (*SERVER_BACKENDS, "local")
VIEWPORT = (1280, 720)


@dataclass(frozen=True)
class Experiment:
    """A name, and the flags of `practicum collect` and `eval` that it sets."""

    name: str
    flags: tuple[str, ...]
    description: str = ""
    expected: tuple[str, str, str] | None = None
    """Success and median steps that the file's author expects, and notes."""
    worker_from_outside: bool = False
    """Whether HALO_WORKER_MODEL chose its model."""


@dataclass(frozen=True)
class ExperimentFile:
    """The experiments of a file, by name and with `defaults` put in, and named subsets of tasks."""

    path: Path
    entries: Mapping[str, Mapping[str, Any]]
    subsets: Mapping[str, tuple[str, ...]]

    def choose(self, names: Sequence[str], environ: Mapping[str, str]) -> list[Experiment]:
        """Return the experiments with these names, or all; UserError where one has a fault or does not exist."""
        for name in names:
            if name not in self.entries:
                raise UserError(f"'{self.path}' has no experiment '{name}'.{did_you_mean(name, self.entries)}")
        return [_experiment(self.path, self.entries[name], environ) for name in dict.fromkeys(names or self.entries)]

    def subset(self, name: str) -> str | None:
        """Return what `--subset` takes for a subset of the file: its items; the name itself where it is none of them;
        None for all tasks."""
        if name not in self.subsets:
            return name
        return ",".join(self.subsets[name]) or None


def experiment_path(path: Path | None) -> Path:
    """Return the file to read: the one given, or configs/experiments.yaml, or the one that comes with the package."""
    chosen = path or DEFAULT_PATH
    if chosen == DEFAULT_PATH and not chosen.is_file():
        return Path(str(resources.files("practicum") / "config" / "experiments.yaml"))
    return chosen


def read_experiments(path: Path | None) -> ExperimentFile:
    """Read a file of experiments; see `experiment_path`."""
    path = experiment_path(path)
    content = _content(path)
    entries = content.get("experiments")
    if not isinstance(entries, list) or not all(isinstance(e, dict) and e.get("name") for e in entries):
        raise UserError(f"'{path}' has no list 'experiments' whose entries each have a 'name'.")
    defaults = content.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise UserError(f"'{path}': 'defaults' must be a mapping of flags of `practicum eval`.")
    by_name: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        name = str(entry["name"])
        if name in by_name:
            raise UserError(f"'{path}': two experiments are called '{name}'; give each a name of its own.")
        if "/" in name or name.startswith("."):
            raise UserError(f"'{path}': an experiment's name is a file's name too, so '{name}' cannot be one.")
        by_name[name] = entry
    merged = {name: {**defaults, **_merged(path, by_name, name)} for name in by_name}
    return ExperimentFile(path, merged, _subsets(path, content.get("task_subsets") or {}))


def _content(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"'{path}' is not YAML ({' '.join(str(error).split())[:200]}).") from None
    if not isinstance(content, dict):
        raise UserError(f"'{path}' has no list 'experiments' whose entries each have a 'name'.")
    unknown = [key for key in content if key not in ("defaults", "experiments", "task_subsets", "metrics")]
    if unknown:  # `metrics` lists columns, all of which the matrix always has
        raise UserError(f"'{path}': '{unknown[0]}' is not 'defaults', 'experiments', 'task_subsets' or 'metrics'.")
    return content


def _merged(path: Path, by_name: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The keys of an experiment with those that it takes over from its `mode`."""
    chain: list[str] = []
    while name in by_name and name not in chain:
        chain.append(name)
        name = str(by_name[name].get("mode") or name)
    if name not in by_name:
        raise UserError(f"'{path}': experiment '{chain[0]}' has the mode '{name}', which is no experiment.")
    values: dict[str, Any] = {}
    for ancestor in reversed(chain):
        values |= by_name[ancestor]
    return values


def _subsets(path: Path, subsets: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(subsets, dict):
        raise UserError(f"'{path}': 'task_subsets' must map names to lists of sites or task ids.")
    items_by_name = {}
    for name, items in subsets.items():
        items = [] if items == "all" or items is None else items
        if not isinstance(items, list):
            raise UserError(f"'{path}': the subset '{name}' is a list of sites or task ids, or 'all'.")
        items_by_name[str(name)] = tuple(str(item) for item in items)
    return items_by_name


def _experiment(path: Path, values: Mapping[str, Any], environ: Mapping[str, str]) -> Experiment:
    name = str(values["name"])
    source = f"'{path}': experiment '{name}'"
    flags = [*_worker_flags(source, values, environ), *_hierarchy_flags(source, values)]
    for key, value in values.items():
        if key not in (*DESCRIPTIVE, *HIERARCHY, *MANAGER, *WORKER):
            flags += _setting(path, str(key), value)
    expected = [str(values.get(key) or "") for key in ("expected_success", "expected_steps", "notes")]
    return Experiment(
        name,
        tuple(flags),
        str(values.get("description") or ""),
        (expected[0], expected[1], expected[2]) if expected[0] or expected[1] else None,
        "qwen_backend" in values and bool(environ.get("HALO_WORKER_MODEL")),
    )


def _hierarchy_flags(source: str, values: Mapping[str, Any]) -> list[str]:
    """The flags of HALO's keys for manager, action cache, macros and recovery; none where all of them are false."""
    for key in HIERARCHY:
        if not isinstance(values.get(key, False), bool):
            raise UserError(f"{source}: '{key}' is true or false.")
    options: dict[str, Any] = {}
    flags: list[str] = []
    if values.get("use_manager"):
        model = str(values.get("manager_model") or DEFAULT_MANAGER)
        options["manager"] = SCRIPTED_MANAGER if model == SCRIPTED_MANAGER else "model"
        is_warm = values.get("manager_warm_start", True)
        options["manager_calls"] = "always" if values.get("always_call_manager") else "warm" if is_warm else "gate"
        if model != SCRIPTED_MANAGER:
            flags += ["--role", f"manager={model}{_manager_url(source, values)}"]
    names = {"use_cache": "cache", "use_macros": "macros", "enable_recovery_policies": "recovery"}
    options |= {name: True for key, name in names.items() if values.get(key)}
    return [*flags, *_env_args(options)]


def _manager_url(source: str, values: Mapping[str, Any]) -> str:
    """What follows a manager's name where a server has it."""
    backend = str(values.get("manager_backend") or "openai")
    if backend not in BACKENDS:
        raise UserError(
            f"{source}: a backend is {', '.join(BACKENDS)}, not '{backend}'.{did_you_mean(backend, BACKENDS)}"
        )
    return "" if backend == "local" else f"@{values.get('manager_base_url') or SERVER_BACKENDS[backend]}"


def _env_args(options: Mapping[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in ("--env-arg", f"{name}={json.dumps(value)}")]


def _worker_flags(source: str, values: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """The flags that name the policy: of a server for the backends vllm and openai, a model's folder for `local`."""
    if "policy" in values:
        if "worker_model" in values:
            raise UserError(f"{source} has a 'policy' and a 'worker_model'; keep one of them.")
        return []
    if not values.get("worker_model"):
        raise UserError(f"{source} has no 'policy' and no 'worker_model'.")
    outside = environ if "qwen_backend" in values else {}
    backend = outside.get("HALO_WORKER_BACKEND") or str(values.get("qwen_backend", "openai"))
    if backend not in BACKENDS:
        raise UserError(
            f"{source}: a backend is {', '.join(BACKENDS)}, not '{backend}'.{did_you_mean(backend, BACKENDS)}"
        )
    model = outside.get("HALO_WORKER_MODEL")
    if backend == "local":
        return ["--policy", str(model or values.get("adapter") or values["worker_model"])]
    url = outside.get("HALO_VLLM_URL") or values.get("qwen_base_url") or SERVER_BACKENDS[backend]
    return ["--policy", str(model or values["worker_model"]), "--url", str(url)]


def url_source(url: str, environ: Mapping[str, str]) -> str:
    """Where the address of an experiment's worker comes from, for a message; see `_worker_flags`."""
    if environ.get("HALO_VLLM_URL") == url:
        return "the value of HALO_VLLM_URL"
    if url in SERVER_BACKENDS.values():
        return "the default of HALO_VLLM_URL"
    return "in the file of experiments"


def _setting(path: Path, key: str, value: Any) -> list[str]:
    """A key as flags; keys of HALO that can have one value only are checked."""
    if key == "headless" and value is not True:
        raise UserError(f"'{path}': the browser has no window; 'headless' is true.")
    if key == "viewport" and tuple(value.values() if isinstance(value, dict) else value or ()) != VIEWPORT:
        raise UserError(f"'{path}': the viewport is {VIEWPORT[0]} × {VIEWPORT[1]}.")
    if key == "task_version" and value != "v2":
        raise UserError(f"'{path}': 'task_version' is v2; other versions come from a registry (--task_registry).")
    if key in ("headless", "viewport", "task_version") or value is None:
        return []
    if key == "env_args":
        if not isinstance(value, dict):
            raise UserError(f"'{path}': 'env_args' must map options of the environment to values.")
        return _env_args(value)
    flag = f"--{'max-turns' if key == 'max_steps' else key.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag] if value else []
    values = value if isinstance(value, list) else [value]
    if any(isinstance(item, (dict, list, bool)) for item in values):
        raise UserError(f"'{path}': '{key}' must be a text, a number, true, false, or a list of texts and numbers.")
    return [word for item in values for word in (flag, str(item))]
