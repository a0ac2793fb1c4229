"""The configuration of a run: its text for the page, and the few keys that the page itself needs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from practicum.config.health import HealthSettings
from practicum.errors import UserError
from practicum.report.runs import CONFIG, PLAN
from practicum.training.monitor.health import HealthMonitor
from practicum.utils.regular_files import open_regular
from practicum.utils.terminal import escape_invisible

MAX_CONFIG_BYTES = 64 << 10
MAX_CONFIGS = 12
"""Configurations of one run that are shown."""


def run_configs(folders: Iterable[Path]) -> list[tuple[str, str]]:
    """The texts of a run's configurations by the folder they are in, "" for the run's own, which is the first.

    A quickstart has a plan, and a pipeline a configuration for each stage.
    """
    run, *stages = folders
    configs = [("", config_text(run / name)) for name in (CONFIG, PLAN)]
    configs += [(escape_invisible(os.path.relpath(stage, run)), config_text(stage / CONFIG)) for stage in stages]
    return [(name, text) for name, text in configs if text is not None][:MAX_CONFIGS]


def config_text(path: Path) -> str | None:
    """The text of a configuration file; None where there is none."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError:
        return None
    return escape_invisible(data[:MAX_CONFIG_BYTES].decode("utf-8", "replace")) + (
        "\n…" if len(data) > MAX_CONFIG_BYTES else ""
    )


def planned_steps(folder: Path) -> int | None:
    """The number of training steps in the run's configuration, if it is there."""
    trainer = _config(folder / CONFIG).get("trainer")
    steps = trainer.get("total_training_steps") if isinstance(trainer, dict) else None
    return steps if type(steps) is int and steps > 0 else None


def health_settings(path: Path) -> HealthSettings:
    """The thresholds of the run's health checks from its configuration, or the defaults."""
    section = _config(path).get("health")
    known: dict[str, Any] = {field.name: type(field.default) for field in fields(HealthSettings)}
    values = {
        name: known[name](value)
        for name, value in (section if isinstance(section, dict) else {}).items()
        if name in known and (isinstance(value, str) if known[name] is str else type(value) in (int, float))
    }
    try:
        return HealthMonitor(HealthSettings(**values)).settings
    except (UserError, TypeError, ValueError):
        return HealthSettings()


class PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML without aliases: a few lines of them, merged into each other, stand for billions of values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def _config(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            config = yaml.load(file.read(MAX_CONFIG_BYTES), PlainLoader)
    except (OSError, yaml.YAMLError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
