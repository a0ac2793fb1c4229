"""A collection: planned episodes, the folder they go to, and what that folder holds already.

Every episode carries a hash of the settings it was made under, so a folder can be told to belong to a run even when the
run was killed: nothing but whole episodes is written before the last one is done.
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
from practicum.data.attempts import Attempt, derive_seed
from practicum.data.jsonl import encode
from practicum.errors import UserError
from practicum.task import Task, content_hash
from practicum.trajectory import Outcome, Seeds, Trajectory

SETTINGS, SUMMARY, TASKS = "collect.json", "rollout_summary.jsonl", "tasks.txt"
SEEDS_A_TASK = 1000
"""Seeds of the world that lie between two tasks."""
ELSEWHERE = "choose another --out (or, for `collect`, another --run-id)"

Row = dict[str, Any]


@dataclass(frozen=True)
class Collection:
    """What is to be played into a folder, under which settings; `about` is what every row of the summary says."""

    folder: Path
    planned: Sequence[Attempt]
    settings: Mapping[str, Any]
    about: Mapping[str, Any]

    @property
    def hash(self) -> str:
        return content_hash(self.settings)

    def path(self, attempt: Attempt) -> Path:
        return store.episode_path(self.folder, attempt.task.id, attempt.number)

    def kept(self) -> dict[Path, Row]:
        """Summaries of the finished episodes in the folder. One that was not scored is not finished."""
        try:
            if not self.folder.exists():
                return {}
        except OSError as error:
            raise UserError(f"'{self.folder}' cannot be used ({error.strerror}); {ELSEWHERE}.") from None
        if not self.folder.is_dir():
            raise UserError(f"'{self.folder}' is not a folder; {ELSEWHERE}.")
        self._check_settings()
        rows = {}
        for attempt in self.planned:
            path = self.path(attempt)
            if path.exists():
                episode = store.read_episode(path)
                if episode.provenance.get("collect") != self.hash:
                    raise self._foreign("made under other settings")
                if episode.scored:
                    rows[path] = self.row(path, episode)
        if not rows and not (self.folder / SETTINGS).exists() and self._strangers():
            raise self._foreign("of another run")
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
        """All episodes are there: say what they are, and under which settings."""
        ordered = [rows[self.path(attempt)] for attempt in self.planned]
        tasks = dict.fromkeys(attempt.task.id for attempt in self.planned)
        settings = {"hash": self.hash, "settings": dict(self.settings)}
        store.write_atomic(self.folder / SUMMARY, b"".join(map(encode, ordered)))
        store.write_atomic(self.folder / TASKS, "".join(f"{name}\n" for name in tasks).encode())
        store.write_atomic(self.folder / SETTINGS, (json.dumps(settings, indent=1) + "\n").encode())
        for scratch in self.folder.glob(".writing-*"):  # a killed run's last, unfinished write
            scratch.unlink(missing_ok=True)

    def _check_settings(self) -> None:
        path = self.folder / SETTINGS
        if not path.exists():
            return
        try:
            known = json.loads(path.read_bytes())
            before, said = known["settings"], known["hash"]
            names = sorted(name for name in {*before, *self.settings} if before.get(name) != self.settings.get(name))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"'{path}' cannot be read; {ELSEWHERE}.") from None
        if said != self.hash:
            raise self._foreign(f"made under other settings ({', '.join(names)})")

    def _strangers(self) -> bool:
        mine = {self.path(attempt) for attempt in self.planned}
        return any(path not in mine and not path.name.startswith(".writing-") for path in self.folder.iterdir())

    def _foreign(self, why: str) -> UserError:
        return UserError(f"'{self.folder}' already holds episodes {why}; {ELSEWHERE}.")


def plan(tasks: Iterable[Task], each: int, seed: int, task_seed: int) -> list[Attempt]:
    """`each` attempts at every task; the world's seed counts up from `task_seed`, a thousand to a task."""
    return [
        Attempt(
            task,
            number,
            Seeds(task_seed + SEEDS_A_TASK * place + number, derive_seed("sampling", seed, "", task.id, number)),
            task.id,
        )
        for place, task in enumerate(tasks)
        for number in range(each)
    ]


def files_hash(folder: Path) -> str:
    """Names the files of a model's folder by their content: a folder trained again is another policy."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            found.append([path.relative_to(folder).as_posix(), hashlib.file_digest(file, "sha256").hexdigest()])
    return content_hash(found)
