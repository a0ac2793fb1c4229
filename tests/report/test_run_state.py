"""A run is finished when it has written what it writes at its end, and nothing after that."""

from __future__ import annotations

import os
from pathlib import Path

from practicum.data.run_folder import locked
from practicum.report.run_state import run_state
from tests.report.report_files import write_training


def end(folder: Path, seconds: float) -> None:
    """The models of a run's end, written so many seconds after its metrics."""
    mtime = (folder / "metrics.jsonl").stat().st_mtime + seconds
    for path in (folder / "model" / "weights", folder / "model"):
        path.parent.mkdir(exist_ok=True)
        if path.name == "weights":
            path.write_text("x")
        os.utime(path, (mtime, mtime))


def test_a_run_that_goes_on_after_its_end_is_not_finished(tmp_path: Path) -> None:
    run = write_training(tmp_path / "run", 3, planned=3)
    assert not run_state(run)["finished"]
    end(run, 1)
    assert run_state(run)["finished"]
    end(run, -60)  # the metrics are newer: it was extended, and not yet finished again
    assert not run_state(run)["finished"]


def test_a_run_that_a_process_writes_to_is_not_finished(tmp_path: Path) -> None:
    run = write_training(tmp_path / "run", 3, planned=3)
    end(run, 1)
    with locked(run, "choose another"):
        state = run_state(run)
    if state["writer"] is not None:  # a machine without /proc/locks does not tell
        assert state == {"finished": False, "writer": True}
    assert run_state(run)["finished"]
