"""Watches a folder of runs: new files are read once, in a thread of its own, and published to every connected page."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from practicum.report.curves import Curves
from practicum.report.index import error_text
from practicum.report.run_view import RunView
from practicum.report.runs import METRICS, runs_below

REFRESH_SECONDS = 1.0
"""Seconds between two checks of the known runs."""
SEARCH_SECONDS = 5.0
"""Seconds between two searches for new runs."""
READ_SECONDS = 0.15
"""Seconds of reading the episodes of one run before the next one."""

MAX_SENT_STEPS = 40
"""New steps that are sent one by one; with more of them a page loads the run again."""

Publish = Callable[[dict[str, Any]], None]


class FolderWatcher:
    """All runs below a folder; nothing on disk is ever written. `views` is replaced, never modified."""

    def __init__(self, top: Path, publish: Publish) -> None:
        self.top, self.publish = top, publish
        self.views: dict[str, RunView] = {}
        self._searched = -SEARCH_SECONDS
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def get(self, key: str) -> RunView | None:
        return self.views.get(key)

    def _run(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            self.refresh(started)
            while self.read_some() and time.monotonic() - started < REFRESH_SECONDS and not self._stop.is_set():
                time.sleep(0.001)  # requests come first
            self._stop.wait(max(0.02, REFRESH_SECONDS - (time.monotonic() - started)) if not self._busy() else 0.02)

    def refresh(self, now: float) -> None:
        """Find new runs, steps and files, and publish them."""
        if now - self._searched >= SEARCH_SECONDS:
            self._searched = now
            self._find()
        for view in list(self.views.values()):
            with self._contained(view):
                before = (view.index.generation, len(view.index.pending))
                for curves, restarted, steps in view.refresh():
                    self._publish_steps(view.run.key, curves, restarted, steps)
                if (view.index.generation, len(view.index.pending)) != before:
                    self._publish_counts(view)

    def _publish_steps(self, key: str, curves: Curves, restarted: bool, steps: list[dict[str, Any]]) -> None:
        """Publish every new step with its row in the file; of many steps only that the run has to be loaded again."""
        about = {"type": "step", "run": key, "curve": curves.name}
        if restarted or len(steps) > MAX_SENT_STEPS:
            self.publish({**about, "again": True})
            return
        row = curves.rows - sum(bool(step["points"]) for step in steps)
        for step in steps:
            row += bool(step["points"])
            self.publish({**about, "again": False, "row": row, **step})

    def read_some(self) -> bool:
        """Read pending episodes for a short time, each run in turn; False when none is pending."""
        busy = False
        for view in list(self.views.values()):
            if not view.index.pending:
                continue
            until = time.monotonic() + READ_SECONDS
            with self._contained(view):
                while time.monotonic() < until and not self._stop.is_set():
                    with view.lock:
                        if not view.index.advance():
                            break
                    time.sleep(0)
            self._publish_counts(view)
            busy = busy or bool(view.index.pending)
        return busy

    @contextlib.contextmanager
    def _contained(self, view: RunView) -> Iterator[None]:
        """Show an error of one run on that run: the page goes on for all others."""
        try:
            yield
        except Exception as error:  # whatever a file makes a reader raise
            view.error = error_text(error)

    def _busy(self) -> bool:
        return any(view.index.pending for view in self.views.values())

    def _find(self) -> None:
        runs = {run.key: run for run in runs_below(self.top)}
        if runs.keys() == self.views.keys():
            return
        self.views = {key: self.views.get(key) or RunView(run) for key, run in runs.items()}
        self.publish({"type": "runs"})

    def _publish_counts(self, view: RunView) -> None:
        index = view.index
        self.publish({"type": "episodes", "run": view.run.key, "count": len(index.rows), "waiting": len(index.pending),
                   "generation": index.generation})  # fmt: skip

    def age(self, view: RunView) -> float | None:
        """Seconds since the run's folder or its metrics changed."""
        times = []
        for path in (view.run.folder / METRICS, view.run.folder, *(c.path for c in view.curves)):
            try:
                times.append(path.stat().st_mtime)
            except OSError:
                continue
        return max(0.0, time.time() - max(times)) if times else None
