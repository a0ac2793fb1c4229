"""The resolved configuration with the source of each value, as `--dry-run` prints it."""

from __future__ import annotations

from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from practicum.config.overrides import DEFAULT, Resolved

COMMENT_COLUMN = 58
"""Where the sources begin, so that most lines fit into 80 columns."""


def annotated_yaml(resolved: Resolved[Any]) -> str:
    """The configuration as YAML; behind every value a comment that says where it comes from: `default`, `model` (the
    defaults of a built-in model), `recipe NAME` or `command line`."""
    tree = OmegaConf.to_container(OmegaConf.structured(resolved.config))
    assert isinstance(tree, dict)
    return "\n".join(_lines(tree, resolved.sources, "", 0)) + "\n"


def _lines(
    tree: dict[Any, Any], sources: dict[str, str], prefix: str, indent: int, inherited: str = DEFAULT
) -> list[str]:
    lines: list[str] = []
    for key, value in tree.items():
        path, margin = f"{prefix}{key}", " " * indent
        source = sources.get(path, inherited)
        is_group = isinstance(value, dict) and value
        if is_group and (path not in sources or any(other.startswith(f"{path}.") for other in sources)):
            lines.append(margin + _dump({key: None}).removesuffix(" null"))
            lines += _lines(value, sources, f"{path}.", indent + 2, source)
            continue
        first, *rest = _dump({key: value}).splitlines()
        lines.append(f"{margin + first:<{COMMENT_COLUMN}}  # {source}")
        lines += [margin + line for line in rest]
    return lines


def _dump(tree: dict[Any, Any]) -> str:
    text: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=10_000)
    return text.rstrip("\n")
