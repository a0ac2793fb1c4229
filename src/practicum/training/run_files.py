"""Names of the files and folders of a training run; readers of runs import them without torch."""

from __future__ import annotations

from pathlib import Path

METRICS, TIMING = "metrics.jsonl", "timing.jsonl"
MODEL, LAST = "model", "last"
"""Folders of a run: the best model by validation (the last where nothing was validated), and the last model."""
TOP, GROUPS = "top_episodes", "groups"
ADVANTAGES = "practicum advantages 1"
"""Format of the files of advantages."""


def advantages_path(episode: Path) -> Path:
    """The path of the advantages of an episode's file."""
    return episode.with_name(episode.name.removesuffix(".jsonl") + ".advantages.json")
