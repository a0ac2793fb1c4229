"""Whether a run is finished, and whether a process of this machine is writing to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from practicum.data.run_folder import LAST, METRICS, MODEL

LOCKS = Path("/proc/locks")
"""The kernel's list of locks. It is read because trying the lock would keep a training from starting at that moment."""


def run_state(folder: Path) -> dict[str, Any]:
    """`finished`: what a run writes at its end is there. `writer`: None where the machine does not tell.

    A run that goes on for more steps still has the models of its earlier end: it is finished only if no process writes
    to it, and nothing was measured after the models were written.
    """
    writer, measured = has_writer(folder), _time(folder / METRICS)
    ends = [_time(folder / name) for name in (LAST, MODEL, "summary.json")]
    return {"finished": not writer and any(end and end >= measured for end in ends), "writer": writer}


def _time(path: Path) -> int:
    """When a file, or a folder's newest file, was last written, in nanoseconds; 0 where there is none."""
    try:
        inside = [entry.stat(follow_symlinks=False).st_mtime_ns for entry in os.scandir(path)] if path.is_dir() else []
        return max([path.stat().st_mtime_ns, *inside])
    except OSError:
        return 0


def has_writer(folder: Path) -> bool | None:
    """Whether a process holds the lock of the folder; one on another machine cannot be seen."""
    try:
        state = folder.stat()
        lines = LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    inode = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}:{state.st_ino}"
    return any(words[1:2] == ["FLOCK"] and inode in words for line in lines if (words := line.split()))
