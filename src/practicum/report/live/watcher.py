"""Watching a folder of runs: what is new is read once, in a thread of its own, and told to every page that listens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from practicum.report.curves import Curves
from practicum.report.run_view import RunView
from practicum.report.runs import METRICS, runs_below

EVERY = 1.0
"""Seconds between two looks at the runs that are there."""
SEARCH = 5.0
"""Seconds between two looks for new runs."""
SLICE = 0.15
"""Seconds of reading episodes before the runs are looked at again."""

MANY = 40
"""New steps of one look from which a page asks for the whole run instead."""

Tell = Callable[[dict[str, Any]], None]


class FolderWatcher:
    """All runs below a folder; nothing on disk is ever written. `readings` is replaced, never changed."""

    def __init__(self, top: Path, tell: Tell) -> None:
        self.top, self.tell = top, tell
        self.readings: dict[str, RunView] = {}
        self._searched = -SEARCH
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def get(self, key: str) -> RunView | None:
        return self.readings.get(key)

    def _go(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            self.look(begun)
            while self.read_some() and time.monotonic() - begun < EVERY and not self._stop.is_set():
                time.sleep(0.001)  # answers come first
            self._stop.wait(max(0.02, EVERY - (time.monotonic() - begun)) if not self._busy() else 0.02)

    def look(self, now: float) -> None:
        """New runs, new steps, new files."""
        if now - self._searched >= SEARCH:
            self._searched = now
            self._find()
        for reading in list(self.readings.values()):
            before = (reading.index.generation, len(reading.index.waiting))
            for curves, again, steps in reading.refresh():
                self._tell_steps(reading.run.key, curves, again, steps)
            if (reading.index.generation, len(reading.index.waiting)) != before:
                self._told(reading)

    def _tell_steps(self, key: str, curves: Curves, again: bool, steps: list[dict[str, Any]]) -> None:
        """Every new step, with its place in the file; where there are many, that the run is better asked for whole."""
        about = {"type": "step", "run": key, "curve": curves.name}
        if again or len(steps) > MANY:
            self.tell({**about, "again": True})
            return
        row = curves.rows - sum(bool(step["points"]) for step in steps)
        for step in steps:
            row += bool(step["points"])
            self.tell({**about, "again": False, "row": row, **step})

    def read_some(self) -> bool:
        """Read waiting episodes for a moment, every run in its turn; False when none is waiting."""
        busy = False
        for reading in list(self.readings.values()):
            if not reading.index.waiting:
                continue
            until = time.monotonic() + SLICE
            while time.monotonic() < until and not self._stop.is_set():
                with reading.lock:
                    if not reading.index.advance():
                        break
                time.sleep(0)
            self._told(reading)
            busy = busy or bool(reading.index.waiting)
        return busy

    def _busy(self) -> bool:
        return any(reading.index.waiting for reading in self.readings.values())

    def _find(self) -> None:
        found = {run.key: run for run in runs_below(self.top)}
        if found.keys() == self.readings.keys():
            return
        self.readings = {key: self.readings.get(key) or RunView(run) for key, run in found.items()}
        self.tell({"type": "runs"})

    def _told(self, reading: RunView) -> None:
        index = reading.index
        self.tell({"type": "episodes", "run": reading.run.key, "count": len(index.rows), "waiting": len(index.waiting),
                   "generation": index.generation})  # fmt: skip

    def age(self, reading: RunView) -> float | None:
        """Seconds since the run's folder or its metrics changed."""
        times = []
        for path in (reading.run.folder / METRICS, reading.run.folder, *(c.path for c in reading.curves)):
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
        return max(0.0, time.time() - max(times)) if times else None
