"""Episodes that a training run leaves on disk, each with the advantages that its tokens were trained with.

`top_episodes/step_N/` holds the best-paid ones. `groups/step_N/` holds the first group of steps 1, 2, 4, 8 ...: whole,
whatever its rewards, so that a person can see what was compared with what. An episode's advantages lie beside it, in
`NAME.advantages.json`: one number where all its tokens share it, else one for every sampled token.
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
Name = tuple[str, str, int, int]


class EpisodeSaver:
    """Writes a run's episodes. `hear` is told what the estimator gave, before the step's episodes are kept."""

    def __init__(self, folder: Path, estimator: str) -> None:
        self.folder, self.estimator = folder, estimator
        self._groups: Sequence[Group] = ()
        self._credit: dict[Name, FloatArray] = {}

    def hear(self, groups: Sequence[Group], advantages: Sequence[Sequence[FloatArray]]) -> None:
        self._groups = groups
        self._credit = {
            _name(episode): row
            for group, rows in zip(groups, advantages, strict=True)
            for episode, row in zip(group, rows, strict=True)
        }

    def forget(self) -> None:
        """The step is over: nothing of it is held on to."""
        self._groups, self._credit = (), {}

    def keep_group(self, step: int) -> None:
        """The first group of a step whose number is a power of two: so few that a long run keeps about a dozen."""
        if self._groups and step & (step - 1) == 0:
            for episode in self._groups[0]:
                self._write(self.folder / GROUPS / f"step_{step}", episode)

    def keep_top(self, step: int, fresh: Group, wanted: Collection[tuple[int, str, int]]) -> None:
        """The best-paid episodes (step, task, attempt), and no others."""
        folder = self.folder / TOP
        for episode in fresh:
            self._write(folder / f"step_{step}", episode)
        paths = {store.episode_path(folder / f"step_{at}", task, attempt) for at, task, attempt in wanted}
        for path in folder.glob("step_*/*.jsonl"):
            if path not in paths:
                path.unlink()
                advantages_path(path).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # others are still in there
                    path.parent.rmdir()

    def _write(self, folder: Path, episode: Trajectory) -> None:
        row = self._credit.get(_name(episode))
        if row is not None:  # before the episode: whoever sees that finds this
            path = advantages_path(store.episode_path(folder, episode.task.id, episode.attempt))
            store.write_atomic(path, _encoded(row, self.estimator))
        store.write_episode(folder, episode)


def advantages_path(episode: Path) -> Path:
    """Where the advantages of an episode's file are."""
    return episode.with_name(episode.name.removesuffix(".jsonl") + ".advantages.json")


def _name(episode: Trajectory) -> Name:
    """What tells an episode of a step from all others, whether or not it was read back from a checkpoint."""
    return episode.group, episode.task.id, episode.attempt, episode.seeds.sampling


def _encoded(row: FloatArray, estimator: str) -> bytes:
    # As the learner computes with them; one that is no number stops the run, and must not hide why.
    values = [float(value) if np.isfinite(value) else None for value in row.astype(np.float32)]
    given: Any = values[0] if values and len(set(values)) == 1 else values
    record = {"format": ADVANTAGES, "estimator": estimator, "advantages": given}
    return (json.dumps(record, allow_nan=False) + "\n").encode()
