"""Schemas filled from recipes and `KEY=VALUE` overrides, in Hydra's grammar, with the source of every value.

An override that names no key is an error that names the nearest one. Spellings of verl, AgentFly and TRL are translated
(`config/aliases.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from practicum.config.aliases import translate
from practicum.config.fields import check_fields
from practicum.errors import UserError, did_you_mean

Schema = TypeVar("Schema")
RECIPES = Path(__file__).parent.parent / "recipes"
"""The recipes that come with the package."""
FREE_KEYS = ("agent.environment_args", "data.environment_args", "rl_training.shares")
"""Keys below which any name is allowed: options of an environment, names of environments."""
DEFAULT, MODEL, RECIPE, COMMAND_LINE = "default", "model", "recipe", "command line"
"""Where a value comes from; of two sources the later one wins."""
ARGUMENT = "argument"
"""The source of the values of a typed configuration."""


@dataclass(frozen=True)
class Resolved(Generic[Schema]):
    """A filled schema, and the source of each key that does not have its default."""

    config: Schema
    sources: dict[str, str]

    @property
    def chosen(self) -> set[str]:
        """Keys that somebody chose: in a recipe or on the command line."""
        return {key for key, source in self.sources.items() if source != MODEL}

    @property
    def has_recipe(self) -> bool:
        return any(source.startswith(RECIPE) for source in self.sources.values())

    def with_defaults(self, values: dict[str, Any]) -> Resolved[Schema]:
        """The same with a model's defaults for those keys that nobody chose."""
        tree = OmegaConf.structured(self.config)
        missing = {key: value for key, value in values.items() if key not in self.sources}
        for key, value in missing.items():
            OmegaConf.update(tree, key, value)
        return Resolved(_as_object(tree), {**self.sources, **dict.fromkeys(missing, MODEL)})


def read_overrides(schema: type[Schema], overrides: list[str], recipes: Path = RECIPES) -> Resolved[Schema]:
    """Defaults, then the recipe (`recipe=NAME`), then the overrides; every number within its bounds."""
    tree = OmegaConf.structured(schema)
    parsed = _parse(overrides)
    sources: dict[str, str] = {}
    for override in parsed:
        if override.key_or_group == "recipe":
            name = str(override.value())
            for key, value in _read_recipe(name, recipes):
                sources |= dict.fromkeys(_set(schema, tree, key, value), f"{RECIPE} {Path(name).stem}")
    for key, value in _in_order(schema, parsed):
        sources |= dict.fromkeys(_set(schema, tree, key, value), COMMAND_LINE)
    config: Schema = _as_object(tree)
    check_fields(config)
    return Resolved(config, sources)


def _parse(overrides: list[str]) -> list[Override]:
    try:
        parsed: list[Override] = OverridesParser.create().parse_overrides(overrides)
    except OverrideParseException as error:
        how = "KEY=VALUE"
        if "=" in str(error.override).partition("=")[2]:
            how += """, and quotes around what holds '=' itself: "KEY='A=B'", "KEY=['A=B']" for a list"""
        raise UserError(f"Cannot read the override '{error.override}'; write {how}.") from None
    for override in parsed:
        if override.is_delete() or override.is_add() or override.is_force_add():
            raise UserError(f"'{override.input_line}': keys are set with KEY=VALUE; none can be added or removed.")
    return parsed


def _in_order(schema: type, parsed: Iterable[Override]) -> list[tuple[str, Any]]:
    """The overrides in the order in which they apply: a name that stands for several keys (verl's clip_ratio) before
    the keys themselves, whichever was written first. Two names of one key may not disagree."""
    pairs = [(str(one.key_or_group), one.value()) for one in parsed if one.key_or_group != "recipe"]
    written: dict[str, tuple[str, Any]] = {}
    for name, value in pairs:
        keys = translate(schema, name, value)
        if len(keys) != 1:
            continue
        key, translated = keys[0]
        other, before = written.setdefault(key, (name, translated))
        if other != name and before != translated:
            raise UserError(f"{other} and {name} are two names of {key} and have two values; give one.")
    return sorted(pairs, key=lambda pair: -len(translate(schema, *pair)))


def _as_object(tree: DictConfig) -> Any:
    try:
        return OmegaConf.to_object(tree)
    except OmegaConfBaseException as error:
        raise UserError(f"{str(error).splitlines()[0]}.") from None


def schema_keys(schema: Any) -> list[str]:
    """Every key of a schema, dotted."""
    return [key for key, _ in leaves(OmegaConf.structured(schema))]


def _set(schema: type, tree: DictConfig, name: str, value: Any) -> list[str]:
    """Set what a name stands for; the keys that were set."""
    keys = []
    for key, translated in translate(schema, name, value):
        _set_key(tree, key, translated)
        keys.append(key)
    return keys


def _set_key(tree: DictConfig, key: str, value: Any) -> None:
    node: Any = tree
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not OmegaConf.is_dict(node) or (part not in node and not _is_free(parts[:depth])):
            raise UserError(f"Unknown key '{key}'.{did_you_mean(key, schema_keys(tree))}")
        if _is_free(parts[:depth]):
            break
        node = node[part]
    try:
        OmegaConf.update(tree, key, value, merge=True, force_add=_is_free(parts[:-1]))
    except OmegaConfBaseException as error:
        raise UserError(f"{key}={value}: {str(error).splitlines()[0]}.") from None


def _is_free(path: list[str]) -> bool:
    """Whether any name is allowed below this path."""
    return ".".join(path[:2]) in FREE_KEYS


def recipe_names(folder: Path = RECIPES) -> list[str]:
    """The recipes in a folder, by name."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _read_recipe(name: str, folder: Path) -> list[tuple[str, Any]]:
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        names = recipe_names(folder)
        raise UserError(
            f"There is no recipe '{name}'.{did_you_mean(name, names)} Recipes: {', '.join(names)}; "
            "or give the path of a YAML file."
        )
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # YAML's own errors have no common base with OmegaConf's
        raise UserError(f"Recipe '{path}' is not valid YAML: {str(error).splitlines()[0]}") from None
    return leaves(content) if isinstance(content, dict) else []


def leaves(tree: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Every key below a tree of groups, dotted, with its value. Free keys are one value."""
    if OmegaConf.is_config(tree):
        tree = OmegaConf.to_container(tree)
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and not _is_free(path.split(".")):
            pairs += leaves(value, f"{path}.")
        else:
            pairs.append((path, value))
    return pairs


def to_yaml(config: Any) -> str:
    """A filled schema as YAML, as it is written beside a run."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def quote(text: str) -> str:
    """A text in the quotes of the override grammar: quotes are escaped, and so are backslashes that precede one."""
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + (match[2] and "\\'"), text) + "'"
