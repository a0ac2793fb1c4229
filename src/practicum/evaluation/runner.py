"""Where an examination happens: which attempts are planned, which are done, and how long each took."""

from __future__ import annotations

import contextvars
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from practicum.data import store
from practicum.data.attempts import Attempt
from practicum.data.collection import Collection, Row
from practicum.data.jsonl import encode
from practicum.environment import Environment
from practicum.errors import UserError
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import AttemptResult, EvalResult, attempt_result
from practicum.rollout import MakeEnvironment
from practicum.trajectory import Trajectory

TIMES = "timing.jsonl"

Seat = tuple[str, int]
"""A task and which attempt at it."""


class EvalRunner:
    """One policy's attempts at a panel, as they come in."""

    def __init__(self, policy: str, environment: str, panel: Panel, attempts: int, settings: Mapping[str, Any]) -> None:
        self.policy, self.environment, self.panel, self.attempts = policy, environment, panel, attempts
        self.settings = settings
        self.planned = panel.attempts(attempts)
        self._sittings: dict[Seat, AttemptResult] = {}
        self._rows: dict[Path, Row] = {}
        self._begun: contextvars.ContextVar[float] = contextvars.ContextVar("begun")

    def missing(self) -> list[Attempt]:
        return [attempt for attempt in self.planned if (attempt.task.id, attempt.number) not in self._sittings]

    def recall(self, kept: Collection | None) -> list[Attempt]:
        """Seat what a folder holds from before; what is missing still is returned."""
        if kept is not None:
            self._rows = kept.kept()
            times = _times(_times_file(kept))
            for attempt in self.planned:
                path = kept.path(attempt)
                if path in self._rows:
                    seat = (attempt.task.id, attempt.number)
                    self._sittings[seat] = attempt_result(store.read_episode(path), times.get(seat))
        return self.missing()

    def timed(self, make: MakeEnvironment) -> MakeEnvironment:
        """The same worlds, with a note of when each was made: an episode begins with that, in a task of its own."""

        def noted() -> Environment:
            self._begun.set(time.monotonic())
            return make()

        return noted

    def seat(self, episode: Trajectory, kept: Collection | None) -> None:
        """Take an episode in, and keep it where episodes are kept."""
        begun = self._begun.get(None)
        seconds = None if begun is None else round(time.monotonic() - begun, 3)
        seat = (episode.task.id, episode.attempt)
        self._sittings[seat] = attempt_result(episode, seconds)
        if kept is not None:
            path = store.write_episode(kept.folder, episode)
            self._rows[path] = kept.row(path, episode)
            try:
                with _times_file(kept).open("ab") as file:
                    file.write(encode({"task_id": seat[0], "attempt": seat[1], "seconds": seconds}))
            except OSError as error:
                raise UserError(f"Cannot write '{_times_file(kept)}': {error.strerror}; free some space.") from error

    def rows(self) -> Mapping[Path, Row]:
        return self._rows

    def examination(self) -> EvalResult:
        """All sittings in the order of the panel."""
        seats = [(attempt.task.id, attempt.number) for attempt in self.planned]
        return EvalResult(
            policy=self.policy,
            environment=self.environment,
            panel=self.panel.hash,
            size=len(self.panel.tasks),
            attempts=self.attempts,
            sittings=tuple(self._sittings[seat] for seat in seats),
            settings=self.settings,
        )


def _times_file(kept: Collection) -> Path:
    """Beside the episodes, not among them: an episode says nothing of the clock."""
    return kept.folder.parent / TIMES


def _times(path: Path) -> dict[Seat, float]:
    """Seconds of each attempt, as far as they were noted; a line that a crash cut short is passed over."""
    found: dict[Seat, float] = {}
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
            found[row["task_id"], int(row["attempt"])] = float(row["seconds"])
        except (ValueError, KeyError, TypeError):
            continue
    return found
