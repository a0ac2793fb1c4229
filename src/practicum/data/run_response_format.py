"""The form that replies had to have while a policy was trained: `agent.response_format` of a run's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from practicum.errors import UserError

CONFIG = "config.yaml"


def run_response_format(run: Path) -> Any:
    """Return `agent.response_format` of the run in a folder; None where it has none, or the folder is of no RL run."""
    try:
        config = yaml.safe_load((run / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    agent = config.get("agent") if isinstance(config, dict) else None
    return agent.get("response_format") if isinstance(agent, dict) else None


def named_run_response_format(folder: str) -> Any:
    """Return the form of a run that a user named; UserError where it was trained with any replies."""
    form = run_response_format(Path(folder).expanduser())
    if form is None:
        raise UserError(
            f"--response-format: the folder '{folder}' has no config.yaml of a run with agent.response_format; name "
            "the run's folder, or a JSON file."
        )
    return form
