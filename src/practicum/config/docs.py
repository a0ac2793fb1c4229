"""The reference page of all configuration keys (docs/config.md), written from the schemas.

`python -m practicum.config.docs docs/config.md` writes it; a test requires that the page in docs/ is up to date.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from practicum.config.dpo import DPOConfig
from practicum.config.fields import UNBOUNDED, bounds_of, choices_of, walk
from practicum.config.overrides import ENGINE_OF_BACKEND, REFUSED, RENAMED, SEVERAL, VALUES
from practicum.config.pipeline import PipelineConfig
from practicum.config.resolve import TINY
from practicum.config.sft import SFTConfig
from practicum.config.train import TrainConfig

COMMANDS: dict[str, type] = {"train": TrainConfig, "sft": SFTConfig, "dpo": DPOConfig, "pipeline": PipelineConfig}
HEAD = """# All configuration keys

This page is made from the schemas in `src/practicum/config` by `python -m practicum.config.docs docs/config.md`.

`practicum train`, `sft`, `dpo` and `pipeline` take `KEY=VALUE` overrides in Hydra's grammar, and `recipe=NAME`. A value
comes from the schema's default, the model's default (a table below), the recipe, or the command line; the later one
wins, and `--dry-run` prints each value in force with its source. An unknown key is an error that names the nearest one.
"""


@functools.cache
def field_docs(schema: type) -> dict[str, str]:
    """The docstring below each field of a schema, also of the schemas it derives from."""
    docs: dict[str, str] = {}
    for base in reversed(schema.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, following in zip(definition.body, definition.body[1:], strict=False):
            if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
                continue
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                docs[statement.target.id] = inspect.cleandoc(str(following.value.value))
    return docs


def groups_of(schema: type, prefix: str = "") -> list[tuple[str, type]]:
    """The schema and every group below it, with the dotted prefix of their keys.

    A mapping of groups (`agent.roles`) has one for all of its names, which is written NAME.
    """
    groups, types = [(prefix, schema)], get_type_hints(schema)
    for field in dataclasses.fields(schema):
        if isinstance(field.default_factory, type) and dataclasses.is_dataclass(field.default_factory):
            groups += groups_of(field.default_factory, f"{prefix}{field.name}.")
        elif get_origin(types[field.name]) is dict and dataclasses.is_dataclass(
            named := get_args(types[field.name])[1]
        ):
            assert isinstance(named, type)
            groups += groups_of(named, f"{prefix}{field.name}.NAME.")
    return groups


def reference_page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD]
    for command, schema in COMMANDS.items():
        parts.append(f"## `practicum {command}`\n")
        for prefix, group in groups_of(schema):
            rows = _rows(group, prefix)
            if rows:
                title = f"### `{prefix[:-1]}`\n\n{inspect.getdoc(group)}\n" if prefix else ""
                parts.append(
                    "\n".join(
                        [title, "| key | type | default | bounds | meaning |", "|---|---|---|---|---|", *rows, ""]
                    )
                )
    return "\n".join([*parts, *_model_defaults(), *_aliases()])


def _rows(group: type, prefix: str) -> list[str]:
    docs, rows = field_docs(group), []
    for key, field, default in walk(group, prefix):
        if "." in key.removeprefix(prefix):
            continue
        bounds = bounds_of(field)
        limits = "" if bounds is None or bounds == UNBOUNDED else str(bounds)
        limits = " or ".join(choices_of(field) or ()) or limits
        meaning = docs[field.name].replace("|", "\\|").replace("<", "&lt;")
        kind = str(field.type).replace(" | None", " or null")
        rows.append(f"| `{key}` | {kind} | `{_yaml(default)}` | {limits} | {meaning} |")
    return rows


def _yaml(value: Any) -> str:
    """A default as one writes it on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def _model_defaults() -> list[str]:
    lines = [
        "## Defaults of `tiny` on a CPU\n",
        "In force where the model is the built-in `tiny`, the device a CPU, and no recipe is named.\n",
    ]
    lines += ["| command | key | default |", "|---|---|---|"]
    for command, schema in COMMANDS.items():
        lines += [f"| `{command}` | `{key}` | `{_yaml(value)}` |" for key, value in TINY[schema].items()]
    return [*lines, ""]


def _aliases() -> list[str]:
    names = "Names that verl, AgentFly, TRL and HTDAG use. `agent.init_args.X` is `agent.X`.\n"
    lines = ["## Other spellings\n", names]
    for command, schema in COMMANDS.items():
        renamed = {
            **RENAMED[schema],
            **({k: ", ".join(v) for k, v in SEVERAL.items()} if schema is TrainConfig else {}),
        }
        if not renamed and not REFUSED[schema]:
            continue
        lines += [f"### `practicum {command}`\n", "| name | key |", "|---|---|"]
        lines += [f"| `{name}` | `{key}` |" for name, key in sorted(renamed.items())]
        lines += [f"| `{name}` | refused: {reason} |" for name, reason in sorted(REFUSED[schema].items())]
        lines.append("")
    lines += ["### Values\n", "| key | value | meaning |", "|---|---|---|"]
    lines += [f"| `{key}` | `{name}` | `{value}` |" for key, values in VALUES.items() for name, value in values.items()]
    unchanged = "the engine of actor_rollout_ref.rollout.name"
    engines = {name: engine or unchanged for name, engine in ENGINE_OF_BACKEND.items()}
    lines += [f"| `agent.backend` | `{name}` | {engine} |" for name, engine in engines.items()]
    return [*lines, ""]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference_page())
