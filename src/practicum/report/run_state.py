"""Whether a run is finished, and whether a process of this machine is writing to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from practicum.training.checkpoint import LAST, MODEL

LOCKS = Path("/proc/locks")
"""The kernel's list of locks. It is read because trying the lock would keep a training from starting at that moment."""


def run_state(folder: Path) -> dict[str, Any]:
    """`finished`: what a run writes at its end is there. `writer`: None where the machine does not tell."""
    ends = (folder / LAST, folder / MODEL, folder / "summary.json")
    return {"finished": any(path.exists() for path in ends), "writer": has_writer(folder)}


def has_writer(folder: Path) -> bool | None:
    """Whether a process holds the lock of the folder; one on another machine cannot be seen."""
    try:
        state = folder.stat()
        lines = LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    inode = f"{os.major(state.st_dev):02x}:{os.minor(state.st_dev):02x}:{state.st_ino}"
    return any(words[1:2] == ["FLOCK"] and inode in words for line in lines if (words := line.split()))
