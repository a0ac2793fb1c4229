"""The attempts of one evaluation: which are planned, which have finished, and how long each took."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from practicum.data import store
from practicum.data.collection import Collection, Row
from practicum.data.episode_times import TIMING_FILE, AttemptKey, append_times, read_seconds
from practicum.environment import Environment
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import AttemptResult, EvalResult, attempt_result
from practicum.rollout import MakeEnvironment
from practicum.trajectory import Attempt, Trajectory


class AttemptLog:
    """One policy's attempts at a panel. With a `collection`, episodes and times are also written to its folder."""

    def __init__(
        self,
        policy: str,
        environment: str,
        panel: Panel,
        attempts: int,
        settings: Mapping[str, Any],
        collection: Collection | None = None,
    ) -> None:
        self.policy, self.environment, self.panel, self.attempts_per_task = policy, environment, panel, attempts
        self.settings, self.collection = settings, collection
        self.planned = panel.attempts(attempts)
        self._results: dict[AttemptKey, AttemptResult] = {}
        self._rows: dict[Path, Row] = {}
        self._started: contextvars.ContextVar[float] = contextvars.ContextVar("started")

    def missing(self) -> list[Attempt]:
        """The planned attempts without a result."""
        return [attempt for attempt in self.planned if (attempt.task.id, attempt.number) not in self._results]

    def load_existing(self) -> None:
        """Take in the scored episodes that the folder holds from an earlier run."""
        if self.collection is None:
            return
        self._rows = self.collection.finished()
        seconds = read_seconds(self._timing_path)
        for attempt in self.planned:
            path = self.collection.path(attempt)
            if path in self._rows:
                key = (attempt.task.id, attempt.number)
                self._results[key] = attempt_result(store.read_episode(path), seconds.get(key))

    def read(self, attempt: Attempt) -> Trajectory | None:
        """The record of an attempt that an earlier run has finished."""
        return None if self.collection is None else store.read_episode(self.collection.path(attempt))

    def timed(self, make_environment: MakeEnvironment) -> MakeEnvironment:
        """Return a factory that also notes when it makes an environment, which every episode does first."""

        def make() -> Environment:
            self._started.set(time.monotonic())
            return make_environment()

        return make

    def record(self, episode: Trajectory) -> None:
        """Take in a finished episode, and write it where there is a folder."""
        started = self._started.get(None)
        seconds = None if started is None else round(time.monotonic() - started, 3)
        key = (episode.task.id, episode.attempt)
        self._results[key] = attempt_result(episode, seconds)
        if self.collection is None:
            return
        append_times(self._timing_path, episode, seconds)
        path = store.write_episode(self.collection.folder, episode)
        self._rows[path] = self.collection.row(path, episode)

    def finish(self) -> EvalResult:
        """The result of all attempts, in the order of the panel; the folder gets its summary."""
        if self.collection is not None:
            self.collection.finish(self._rows)
        return EvalResult(
            policy=self.policy,
            environment=self.environment,
            panel=self.panel.hash,
            num_tasks=len(self.panel.tasks),
            attempts_per_task=self.attempts_per_task,
            attempts=tuple(self._results[attempt.task.id, attempt.number] for attempt in self.planned),
            settings=self.settings,
        )

    @property
    def _timing_path(self) -> Path:
        """Return the path of the file of times. It is no part of the episodes: they do not depend on the clock."""
        assert self.collection is not None
        return self.collection.folder.parent / TIMING_FILE
