"""Modes of `practicum matrix`: named on the command line, or in a file of experiments (as HALO writes it)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from practicum.errors import UserError, did_you_mean

DESCRIPTIVE = ("name", "description")


@dataclass(frozen=True)
class Mode:
    """A name and the arguments of `practicum eval` that it stands for."""

    name: str
    flags: tuple[str, ...]


def named_modes(pairs: Sequence[str]) -> list[Mode]:
    """`NAME=POLICY`, or a policy that is its own name."""
    modes = []
    for pair in pairs:
        name, equals, policy = pair.partition("=")
        if not name or (equals and not policy):
            raise UserError(f"--mode '{pair}': write NAME=POLICY, such as sft=runs/quickstart-0/sft.")
        modes.append(Mode(name, ("--policy", policy or name)))
    return _distinct(modes)


def read_modes(path: Path, names: Sequence[str]) -> list[Mode]:
    """The experiments of a YAML file with these names, or all. `defaults` hold for what an experiment leaves out."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"'{path}' is not YAML ({' '.join(str(error).split())[:200]}).") from None
    experiments = content.get("experiments") if isinstance(content, dict) else None
    if not isinstance(experiments, list) or not all(isinstance(e, dict) and e.get("name") for e in experiments):
        raise UserError(f"'{path}' has no list 'experiments' whose entries each have a 'name'.")
    defaults = content.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise UserError(f"'{path}': 'defaults' must be a mapping of flags of `practicum eval`.")
    modes = {mode.name: mode for mode in _distinct([_mode(path, defaults, entry) for entry in experiments])}
    for name in names:
        if name not in modes:
            raise UserError(f"'{path}' has no experiment '{name}'.{did_you_mean(name, modes)}")
    return [modes[name] for name in dict.fromkeys(names)] if names else list(modes.values())


def _mode(path: Path, defaults: Mapping[str, Any], entry: Mapping[str, Any]) -> Mode:
    values = {**defaults, **entry}
    if not values.get("policy"):
        raise UserError(f"'{path}': experiment '{entry['name']}' has no 'policy'.")
    flags = [
        word for key, value in values.items() if key not in DESCRIPTIVE for word in _arguments(path, str(key), value)
    ]
    return Mode(str(entry["name"]), tuple(flags))


def _arguments(path: Path, key: str, value: Any) -> list[str]:
    """A key as a flag of `practicum eval` with its value; a list repeats the flag."""
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    if any(isinstance(one, (dict, list, bool)) for one in values):
        raise UserError(f"'{path}': '{key}' must be a text, a number, or a list of these.")
    return [word for one in values for word in (f"--{key.replace('_', '-')}", str(one))]


def _distinct(modes: Iterable[Mode]) -> list[Mode]:
    """The modes; two of one name are refused, because they would be one line of the matrix and one file."""
    by_name: dict[str, Mode] = {}
    for mode in modes:
        if mode.name in by_name:
            raise UserError(f"Two modes are called '{mode.name}'; give each a name of its own.")
        if "/" in mode.name or mode.name.startswith("."):
            raise UserError(f"A mode's name is a file's name too, so '{mode.name}' cannot be one; write NAME=POLICY.")
        by_name[mode.name] = mode
    return list(by_name.values())
