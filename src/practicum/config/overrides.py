"""Typed schemas filled from recipes and `KEY=VALUE` overrides, in Hydra's grammar.

An override that names no key is an error that names the nearest one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from practicum.errors import UserError, did_you_mean

Schema = TypeVar("Schema")
RECIPES = Path(__file__).parent.parent / "recipes"
"""The recipes that come with the package."""
FREE = ("agent.environment_args", "data.environment_args", "rl_training.shares")
"""Keys below which the names are not ours: an environment's options, environments."""


def read_overrides(schema: type[Schema], overrides: list[str], recipes: Path = RECIPES) -> tuple[Schema, set[str]]:
    """Defaults, then the recipe (`recipe=NAME`), then the overrides; and which keys somebody set."""
    config = OmegaConf.structured(schema)
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except OverrideParseException as error:
        how = "KEY=VALUE"
        if "=" in str(error.override).partition("=")[2]:
            how += """, and quotes around what holds '=' itself: "KEY='A=B'", "KEY=['A=B']" for a list"""
        raise UserError(f"Cannot read the override '{error.override}'; write {how}.") from None
    given: set[str] = set()
    for override in parsed:
        if override.key_or_group == "recipe":
            given |= _merge_recipe(config, str(override.value()), recipes)
    for override in parsed:
        if override.is_delete() or override.is_add() or override.is_force_add():
            raise UserError(f"'{override.input_line}': keys are set with KEY=VALUE; none can be added or removed.")
        if override.key_or_group != "recipe":
            given.add(_set(config, str(override.key_or_group), override.value()))
    try:
        made: Any = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise UserError(f"{str(error).splitlines()[0]}.") from None
    return made, given


def schema_keys(schema: Any) -> list[str]:
    """Every key of a schema, dotted."""
    return _keys(OmegaConf.structured(schema))


def _keys(config: DictConfig) -> list[str]:
    tree = OmegaConf.to_container(config)
    assert isinstance(tree, dict)
    return [key for key, _ in _leaves(tree, "")]


def _set(config: DictConfig, key: str, value: Any) -> str:
    """Set one key; its canonical name."""
    key = key.replace("agent.init_args.", "agent.")
    node: Any = config
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not OmegaConf.is_dict(node) or (part not in node and not _free(parts[:depth])):
            raise UserError(f"Unknown key '{key}'.{did_you_mean(key, _keys(config))}")
        if _free(parts[:depth]):
            break
        node = node[part]
    try:
        OmegaConf.update(config, key, value, merge=True, force_add=_free(parts[:-1]))
    except OmegaConfBaseException as error:
        raise UserError(f"{key}={value}: {str(error).splitlines()[0]}.") from None
    return key


def _free(path: list[str]) -> bool:
    """Whether keys below this path are not ours to know."""
    return ".".join(path[:2]) in FREE


def recipe_names(folder: Path = RECIPES) -> list[str]:
    """The recipes in a folder, by name."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _merge_recipe(config: DictConfig, name: str, folder: Path) -> set[str]:
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        known = recipe_names(folder)
        hint = did_you_mean(name, known)
        raise UserError(
            f"There is no recipe '{name}'.{hint} Recipes: {', '.join(known)}; or give the path of a YAML file."
        )
    try:
        loaded = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # YAML's own errors have no common base with OmegaConf's
        raise UserError(f"Recipe '{path}' is not valid YAML: {str(error).splitlines()[0]}") from None
    return {_set(config, key, value) for key, value in _leaves(loaded if isinstance(loaded, dict) else {}, "")}


def _leaves(tree: dict[Any, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and not _free(path.split(".")):
            found += _leaves(value, f"{path}.")
        else:
            found.append((path, value))
    return found


def show(config: Any) -> str:
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def quote(text: str) -> str:
    """A text in the quotes of the override grammar: quotes are escaped, and so are backslashes that precede one."""
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + (match[2] and "\\'"), text) + "'"
