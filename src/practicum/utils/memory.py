"""A process and all that it started, from the kernel's own lists (Linux; elsewhere nothing is known)."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


def descendants(root: int | None = None) -> list[int]:
    """Processes that `root` (default: this one) started, and those that they started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [os.getpid() if root is None else root]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return sorted(found)


def tree_megabytes(root: int | None = None) -> float:
    """Resident memory of a process and its descendants together. What they share is counted in each."""
    whole = [os.getpid() if root is None else root, *descendants(root)]
    return sum(map(_resident, whole)) / 1e6


def give_back() -> None:
    """Hand memory that is no longer used to the system, so that what is measured next is not hidden in it."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # other C libraries keep it
        ctypes.CDLL(None).malloc_trim(0)


def tree_seconds(root: int) -> float:
    """Processor time that a process and its living descendants have used."""
    return sum(map(_seconds, [root, *descendants(root)]))


def _seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    except (OSError, ValueError, IndexError):  # it ended meanwhile
        return 0.0


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):  # it ended meanwhile
        return 0


def _parent(entry: Path) -> int | None:
    try:
        # The name stands in brackets and may hold anything: what counts comes after the last one.
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else int(fields[1])
    except (OSError, ValueError, IndexError):
        return None
