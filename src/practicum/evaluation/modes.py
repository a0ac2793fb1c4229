"""Modes to examine side by side: named on the command line, or in a file of experiments (founding paper 002)."""

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
    """A name and the words of `practicum eval` that make it."""

    name: str
    flags: tuple[str, ...]


def named_modes(pairs: Sequence[str]) -> list[Mode]:
    """`NAME=POLICY`, or a policy that is its own name."""
    found = []
    for pair in pairs:
        name, equals, policy = pair.partition("=")
        if not name or (equals and not policy):
            raise UserError(f"--mode '{pair}': write NAME=POLICY, such as sft=runs/quickstart-0/sft.")
        found.append(Mode(name, ("--policy", policy or name)))
    return _distinct(found)


def read_modes(path: Path, wanted: Sequence[str]) -> list[Mode]:
    """The experiments of a YAML file that are wanted, or all. `defaults` stand for what an experiment does not say."""
    try:
        whole = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"'{path}' is not YAML ({' '.join(str(error).split())[:200]}).") from None
    experiments = whole.get("experiments") if isinstance(whole, dict) else None
    if not isinstance(experiments, list) or not all(isinstance(e, dict) and e.get("name") for e in experiments):
        raise UserError(f"'{path}' has no list 'experiments' whose entries each have a 'name'.")
    defaults = whole.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise UserError(f"'{path}': 'defaults' must be a mapping of flags of `practicum eval`.")
    modes = {mode.name: mode for mode in _distinct([_mode(path, defaults, entry) for entry in experiments])}
    for name in wanted:
        if name not in modes:
            raise UserError(f"'{path}' has no experiment '{name}'.{did_you_mean(name, modes)}")
    return [modes[name] for name in dict.fromkeys(wanted)] if wanted else list(modes.values())


def _mode(path: Path, defaults: Mapping[str, Any], entry: Mapping[str, Any]) -> Mode:
    given = {**defaults, **entry}
    if not given.get("policy"):
        raise UserError(f"'{path}': experiment '{entry['name']}' has no 'policy'.")
    flags = [word for key, value in given.items() if key not in DESCRIPTIVE for word in _words(path, str(key), value)]
    return Mode(str(entry["name"]), tuple(flags))


def _words(path: Path, key: str, value: Any) -> list[str]:
    """A key as the flag of `practicum eval` that it is; a list is the flag given several times."""
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    if any(isinstance(one, (dict, list, bool)) for one in values):
        raise UserError(f"'{path}': '{key}' must be a text, a number, or a list of these.")
    return [word for one in values for word in (f"--{key.replace('_', '-')}", str(one))]


def _distinct(modes: Iterable[Mode]) -> list[Mode]:
    """Two modes of one name would be one line of the matrix: the second is refused, not lost."""
    found: dict[str, Mode] = {}
    for mode in modes:
        if mode.name in found:
            raise UserError(f"Two modes are called '{mode.name}'; give each a name of its own.")
        if "/" in mode.name or mode.name.startswith("."):
            raise UserError(f"A mode's name is a file's name too, so '{mode.name}' cannot be one; write NAME=POLICY.")
        found[mode.name] = mode
    return list(found.values())
