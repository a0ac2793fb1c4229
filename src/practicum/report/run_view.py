"""A run as it is read: its curves, its episodes, its result; and the record of it that the page gets."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from practicum.errors import UserError
from practicum.evaluation.result import EvalResult, read_result
from practicum.report.advantages import EpisodeAdvantages, read_advantages
from practicum.report.cohorts import Cohort, cohorts_of
from practicum.report.curves import Curves, config_text, planned_steps
from practicum.report.episode import view
from practicum.report.highlights import highlights
from practicum.report.index import FAULTS, EpisodeRow, Index, read_episode, reason
from practicum.report.runs import Run
from practicum.report.tokens import Tokenizers
from practicum.utils.escape import shown

MOST_LISTED = 200
"""Files that cannot be read, by name; beyond that they are counted."""


class RunView:
    """One run. `refresh` finds what is new; nothing in the run's folder is ever changed.

    `lock` guards the curves and the index where one thread reads the run and others ask about it.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.lock = threading.RLock()
        self.index = Index(run.folder)
        self.curves: list[Curves] = []
        self.result: EvalResult | None = None
        self.fault: str | None = None
        self._dealt: tuple[tuple[int, int], list[Cohort]] | None = None
        if run.result is not None:
            try:
                self.result = read_result(run.result)
            except (UserError, *FAULTS) as error:
                self.fault = reason(error)

    @property
    def name(self) -> str:
        return self.run.name

    def refresh(self) -> list[tuple[Curves, bool, list[dict[str, Any]]]]:
        """List new files, and read on in every metrics file; each with whether it began anew, and its new steps."""
        with self.lock:
            self.index.scan()
            known = {curves.path for curves in self.curves}
            for path in self.index.metrics_files():
                if path not in known:
                    self.curves.append(Curves(path, _stage(path.parent, self.run)))
            return [(curves, *curves.advance()) for curves in self.curves]

    def cohorts(self) -> list[Cohort]:
        """Parts of the run; where there is a result, it speaks for the episodes it was made of."""
        with self.lock:
            state, rows = (self.index.generation, len(self.index.rows)), list(self.index.rows)
        if self._dealt is None or self._dealt[0] != state:
            found = cohorts_of(self.run.key, self.name, rows)
            if self.result is not None:
                mine = Cohort(self.run.key, self.name, "", "", self.result, True)
                found = [mine, *(c for c in found if c.part != "episodes")]
            self._dealt = (state, found)
        return self._dealt[1]

    def record(self) -> dict[str, Any]:
        """What the page shows of the run besides its episodes."""
        cohorts = self.cohorts()
        with self.lock:
            curves = [curves.record() for curves in self.curves]
            rows, unreadable = list(self.index.rows), list(self.index.unreadable)
            waiting, generation = len(self.index.waiting), self.index.generation
        return {
            "key": self.run.key,
            "name": shown(self.name),
            "folder": shown(os.fspath(self.run.folder)),
            "kind": "training" if curves else "examination" if self.result else "episodes",
            "policy": shown(self.result.policy) if self.result else None,
            "planned": planned_steps(self.run.folder),
            "config": config_text(self.run.folder),
            "curves": curves,
            "table": [cohort.record() for cohort in cohorts],
            "samples": highlights(rows),
            "episodes": len(rows),
            "waiting": waiting,
            "generation": generation,
            "fault": None if self.fault is None else shown(self.fault),
            "unreadable": [entry.record() for entry in unreadable[:MOST_LISTED]],
            "unreadable_count": len(unreadable),
        }

    def episode(self, row: EpisodeRow, tokenizers: Tokenizers) -> dict[str, Any]:
        """One episode for the page, or why it cannot be shown: its file may have gone or changed since."""
        path = self.index.path(row)
        try:
            episode, _ = read_episode(path)
            return {**view(episode, tokenizers, _credit(path)), "path": shown(os.fspath(path))}
        except FAULTS as error:
            return {"fault": shown(reason(error)), "path": shown(os.fspath(path))}


def _credit(path: Path) -> EpisodeAdvantages | None:
    """Damaged advantages are listed by the index; the episode is shown without them."""
    try:
        return read_advantages(path)
    except FAULTS:
        return None


def _stage(folder: os.PathLike[str], run: Run) -> str:
    name = os.path.relpath(folder, run.folder)
    return "" if name == "." else name
