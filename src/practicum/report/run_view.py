"""A run as the page shows it: its curves, its episodes, its result."""

from __future__ import annotations

import math
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from practicum.errors import UserError
from practicum.evaluation.result import EvalResult, read_result
from practicum.report.advantages import EpisodeAdvantages, read_advantages
from practicum.report.curves import Curves
from practicum.report.drawings import Drawings, first_and_last
from practicum.report.episode import view
from practicum.report.highlights import highlights
from practicum.report.index import READ_ERRORS, EpisodeIndex, EpisodeRow, error_text, read_episode
from practicum.report.run_config import planned_steps, run_configs
from practicum.report.run_parts import RunPart, parts_of_run
from practicum.report.run_state import run_state
from practicum.report.run_versions import run_versions
from practicum.report.runs import RunFolder
from practicum.report.tokens import Tokenizers
from practicum.training.validation_results import VALIDATION, validation_files
from practicum.training.validation_results import first_and_last as first_and_last_validation
from practicum.utils.terminal import escape_invisible

MAX_RESULT_BYTES = 512 << 20
MAX_LISTED_FILES = 200
"""Unreadable files that are listed by name; further ones are only counted."""


class RunView:
    """One run. `refresh` finds new files and steps; nothing in the run's folder is ever written.

    `lock` guards the curves and the index while one thread reads the run and others answer requests.
    """

    def __init__(self, run: RunFolder, drawings: Drawings | None = None) -> None:
        self.run = run
        self.drawings = drawings or Drawings()
        self.lock = threading.RLock()
        self.index = EpisodeIndex(run.folder)
        self.curves: list[Curves] = []
        self.result: EvalResult | None = None
        self.error: str | None = None
        self._parts_cache: tuple[tuple[int, int, int], list[RunPart]] | None = None
        if run.result is not None:
            try:
                if run.result.stat().st_size > MAX_RESULT_BYTES:
                    raise ValueError(f"the result has more than {MAX_RESULT_BYTES >> 20} MiB")
                self.result = read_result(run.result)
            except (UserError, *READ_ERRORS) as error:
                self.error = error_text(error)

    @property
    def name(self) -> str:
        return self.run.name

    def refresh(self) -> list[tuple[Curves, bool, list[dict[str, Any]]]]:
        """Find new files and read every metrics file: whether it was read from the start, and its new steps."""
        with self.lock:
            self.index.scan()
            paths = {curves.path for curves in self.curves}
            for path in self.index.metrics_files():
                if path not in paths:
                    self.curves.append(Curves(path, _stage_name(path.parent, self.run)))
            return [(curves, *curves.advance()) for curves in self.curves]

    def parts(self) -> list[RunPart]:
        """The parts of the run; a result takes the place of the episodes that it was made of."""
        with self.lock:
            validations = sum(len(validation_files(curves.path.parent)) for curves in self.curves)
            state, rows = (self.index.generation, len(self.index.rows), validations), list(self.index.rows)
        if self._parts_cache is None or self._parts_cache[0] != state:
            parts = parts_of_run(self.run.key, self.name, rows)
            if self.result is not None:
                evaluated = RunPart(self.run.key, self.name, "", "", self.result, True)
                parts = [evaluated, *(part for part in parts if part.part != "episodes")]
            parts += self._validation_parts()
            self._parts_cache = (state, parts)
        return self._parts_cache[1]

    def _validation_parts(self) -> list[RunPart]:
        """The first and the last validation of every stage of a training, which played the same panel."""
        parts = []
        for curves in self.curves:
            stage = f"{self.name} · {curves.name}" if curves.name else self.name
            try:
                results = first_and_last_validation(curves.path.parent)
            except (UserError, *READ_ERRORS):
                continue
            for result in results:
                label = f"{stage} · validation, {result.policy}"
                parts.append(RunPart(self.run.key, label, VALIDATION, "val", replace(result, policy=label), True))
        return parts

    def record(self) -> dict[str, Any]:
        """The run as JSON for the page, without its episodes."""
        parts = self.parts()
        with self.lock:
            curves, files = [curves.record() for curves in self.curves], [curves.path for curves in self.curves]
            seconds = math.fsum(curves.axes["seconds"].total for curves in self.curves)
            rows, unreadable = list(self.index.rows), list(self.index.unreadable)
            waiting, generation = len(self.index.pending), self.index.generation
        return {
            "key": self.run.key,
            "name": escape_invisible(self.name),
            "folder": escape_invisible(os.fspath(self.run.folder)),
            "kind": "training" if curves else "examination" if self.result else "episodes",
            "policy": escape_invisible(self.result.policy) if self.result else None,
            "planned": planned_steps(self.run.folder),
            "configs": run_configs(dict.fromkeys([self.run.folder, *(path.parent for path in files)])),
            "versions": run_versions(dict.fromkeys([self.run.folder, *(path.parent for path in files)])),
            "seconds": seconds or None,
            **run_state(self.run.folder),
            "curves": curves,
            "table": [part.record() for part in parts],
            "samples": highlights(rows),
            "drawings": first_and_last(rows, self.drawings),
            "episodes": len(rows),
            "waiting": waiting,
            "generation": generation,
            "fault": None if self.error is None else escape_invisible(self.error),
            "unreadable": [entry.record() for entry in unreadable[:MAX_LISTED_FILES]],
            "unreadable_count": len(unreadable),
        }

    def episode(self, row: EpisodeRow, tokenizers: Tokenizers) -> dict[str, Any]:
        """One episode for the page, or the error: its file may have been removed or changed."""
        path = self.index.path(row)
        try:
            episode, _ = read_episode(path)
            shown = view(episode, tokenizers, _readable_advantages(path), self.drawings)
            return {**shown, "path": escape_invisible(os.fspath(path))}
        except READ_ERRORS as error:
            return {"fault": escape_invisible(error_text(error)), "path": escape_invisible(os.fspath(path))}


def _readable_advantages(path: Path) -> EpisodeAdvantages | None:
    """The advantages beside an episode; None for damaged ones, which the index lists."""
    try:
        return read_advantages(path)
    except READ_ERRORS:
        return None


def _stage_name(folder: os.PathLike[str], run: RunFolder) -> str:
    name = os.path.relpath(folder, run.folder)
    return "" if name == "." else name
