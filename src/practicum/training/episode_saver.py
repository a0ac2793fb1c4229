"""Episodes that a training run saves, each with the advantages that its tokens were trained with.

`top_episodes/step_N/` holds those of the highest reward. `groups/step_N/` holds the first group of steps 1, 2, 4, 8
...: all of it, whatever its rewards, so that a person can see what was compared with what. The advantages of an episode
are in the file beside it, `NAME.advantages.json`: one number where all its tokens share it, else one per sampled token.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from practicum.data import store
from practicum.trajectory import Trajectory
from practicum.utils.arrays import FloatArray

TOP, GROUPS = "top_episodes", "groups"
ADVANTAGES = "practicum advantages 1"

Group = Sequence[Trajectory]
EpisodeKey = tuple[str, str, int, int]


class EpisodeSaver:
    """Writes a run's episodes; `set_advantages` comes before a step's episodes are saved, `clear` after it."""

    def __init__(self, folder: Path, estimator: str) -> None:
        self.folder, self.estimator = folder, estimator
        self._groups: Sequence[Group] = ()
        self._advantages: dict[EpisodeKey, FloatArray] = {}

    def set_advantages(self, groups: Sequence[Group], advantages: Sequence[Sequence[FloatArray]]) -> None:
        """The groups of a step and their advantages per token."""
        self._groups = groups
        self._advantages = {
            _key(episode): row
            for group, rows in zip(groups, advantages, strict=True)
            for episode, row in zip(group, rows, strict=True)
        }

    def clear(self) -> None:
        """Release the groups of the step."""
        self._groups, self._advantages = (), {}

    def save_group(self, step: int) -> None:
        """Save the first group of a step whose number is a power of two: about a dozen groups in a long run."""
        if self._groups and step & (step - 1) == 0:
            for episode in self._groups[0]:
                self._write(self.folder / GROUPS / f"step_{step}", episode)

    def save_top(self, step: int, new: Group, top: Collection[tuple[int, str, int]]) -> None:
        """Save the new episodes among those of the highest reward, and delete all but `top` (step, task, attempt)."""
        folder = self.folder / TOP
        for episode in new:
            self._write(folder / f"step_{step}", episode)
        paths = {store.episode_path(folder / f"step_{at}", task, attempt) for at, task, attempt in top}
        for path in folder.glob("step_*/*.jsonl"):
            if path not in paths:
                path.unlink()
                advantages_path(path).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # other episodes are still in it
                    path.parent.rmdir()

    def _write(self, folder: Path, episode: Trajectory) -> None:
        row = self._advantages.get(_key(episode))
        if row is not None:  # before the episode: a reader of that finds these
            path = advantages_path(store.episode_path(folder, episode.task.id, episode.attempt))
            store.write_atomic(path, _encoded(row, self.estimator))
        store.write_episode(folder, episode)


def advantages_path(episode: Path) -> Path:
    """The path of the advantages of an episode's file."""
    return episode.with_name(episode.name.removesuffix(".jsonl") + ".advantages.json")


def _key(episode: Trajectory) -> EpisodeKey:
    """Identifies an episode of a step, whether or not it was read back from a checkpoint."""
    return episode.group, episode.task.id, episode.attempt, episode.seeds.sampling


def _encoded(row: FloatArray, estimator: str) -> bytes:
    # In the learner's precision; NaN stops the run, and its record must not hide why.
    values = [float(value) if np.isfinite(value) else None for value in row.astype(np.float32)]
    encoded: Any = values[0] if values and len(set(values)) == 1 else values
    record = {"format": ADVANTAGES, "estimator": estimator, "advantages": encoded}
    return (json.dumps(record, allow_nan=False) + "\n").encode()
