"""A collection: planned episodes, the folder they are written to, and the episodes that it holds already.

Every episode records a hash of the settings it was made under, so that a folder can be assigned to a run even if the
run was killed: before the last episode is done, nothing but complete episodes is written.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.data import store
from practicum.data.episode_times import TIMING_FILE
from practicum.data.jsonl import encode
from practicum.data.run_folder import UNFINISHED, write_atomic
from practicum.errors import UserError
from practicum.task import Task, content_hash
from practicum.trajectory import Attempt, Outcome, Seeds, Trajectory, derive_seed

SETTINGS, SUMMARY, TASKS = "collect.json", "rollout_summary.jsonl", "tasks.txt"
SEEDS_PER_TASK = 1000
"""Distance between the environment seeds of consecutive tasks."""
CHOOSE_ANOTHER = "choose another --out (or, for `collect`, another --run-id)"

Row = dict[str, Any]


@dataclass(frozen=True)
class Collection:
    """The attempts of a folder and their settings; `about` is part of every row of the summary."""

    folder: Path
    planned: Sequence[Attempt]
    settings: Mapping[str, Any]
    about: Mapping[str, Any]

    @property
    def hash(self) -> str:
        return content_hash(self.settings)

    def path(self, attempt: Attempt) -> Path:
        return store.episode_path(self.folder, attempt.task.id, attempt.number)

    def finished(self) -> dict[Path, Row]:
        """Summaries of the scored episodes in the folder, by path. An unscored episode is run again."""
        try:
            if not self.folder.exists():
                return {}
        except OSError as error:
            raise UserError(f"'{self.folder}' cannot be used ({error.strerror}); {CHOOSE_ANOTHER}.") from None
        if not self.folder.is_dir():
            raise UserError(f"'{self.folder}' is not a folder; {CHOOSE_ANOTHER}.")
        self._check_settings()
        rows = {}
        for attempt in self.planned:
            path = self.path(attempt)
            if path.exists():
                episode = store.read_episode(path)
                if episode.provenance.get("collect") != self.hash:
                    raise self._conflict("made under other settings")
                if episode.scored:
                    rows[path] = self.row(path, episode)
        if not rows and not (self.folder / SETTINGS).exists() and self._has_other_files():
            raise self._conflict("of another run")
        return rows

    def row(self, path: Path, episode: Trajectory) -> Row:
        """One line of the summary."""
        when = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
        return {
            "timestamp": when.isoformat(timespec="seconds"),
            "task_id": episode.task.id,
            "attempt_idx": episode.attempt,
            **self.about,
            "task_seed": episode.seeds.environment,
            "temperature": episode.provenance.get("temperature"),
            "success": episode.outcome is Outcome.SUCCESS,
            "reward": episode.reward,
            "n_steps": len(episode.turns),
            "outcome": episode.outcome.value,
            **({} if episode.error is None else {"error": episode.error}),
        }

    def finish(self, rows: Mapping[Path, Row]) -> None:
        """Write the summary, the task ids and the settings, once all episodes are there."""
        ordered = [rows[self.path(attempt)] for attempt in self.planned]
        tasks = dict.fromkeys(attempt.task.id for attempt in self.planned)
        settings = {"hash": self.hash, "settings": dict(self.settings)}
        write_atomic(self.folder / SUMMARY, b"".join(map(encode, ordered)))
        write_atomic(self.folder / TASKS, "".join(f"{name}\n" for name in tasks).encode())
        write_atomic(self.folder / SETTINGS, (json.dumps(settings, indent=1) + "\n").encode())

    def _check_settings(self) -> None:
        path = self.folder / SETTINGS
        if not path.exists():
            return
        try:
            stored = json.loads(path.read_bytes())
            before, stored_hash = stored["settings"], stored["hash"]
            names = sorted(name for name in {*before, *self.settings} if before.get(name) != self.settings.get(name))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"'{path}' cannot be read; {CHOOSE_ANOTHER}.") from None
        if stored_hash != self.hash:
            raise self._conflict(f"made under other settings ({', '.join(names)})")

    def _has_other_files(self) -> bool:
        own = {self.path(attempt) for attempt in self.planned}
        return any(
            path not in own and path.name != TIMING_FILE and not path.name.startswith(UNFINISHED)
            for path in self.folder.iterdir()
        )

    def _conflict(self, which: str) -> UserError:
        return UserError(f"'{self.folder}' already holds episodes {which}; {CHOOSE_ANOTHER}.")


def plan(tasks: Iterable[Task], attempts_per_task: int, seed: int, task_seed: int) -> list[Attempt]:
    """The attempts at every task. The environment's seed is `task_seed` + 1000 × index of the task + attempt."""
    return [
        Attempt(
            task,
            attempt,
            Seeds(task_seed + SEEDS_PER_TASK * index + attempt, derive_seed("sampling", seed, "", task.id, attempt)),
            task.id,
        )
        for index, task in enumerate(tasks)
        for attempt in range(attempts_per_task)
    ]


def files_hash(folder: Path) -> str:
    """A hash of all files in a model's folder: a model trained again is another policy."""
    hashes = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            hashes.append([path.relative_to(folder).as_posix(), hashlib.file_digest(file, "sha256").hexdigest()])
    return content_hash(hashes)
