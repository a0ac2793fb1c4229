"""How long the tool calls of episodes took, from the `timing.jsonl` beside them or one folder above, as it grows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from practicum.data.episode_times import TIMING_FILE, AttemptKey
from practicum.data.jsonl import parse_object
from practicum.report.curves import FileTail
from practicum.report.row_text import MAX_TOOLS, tool_name
from practicum.utils.escape import is_number

MAX_CALLS = 100
"""Calls of one tool in one episode whose times are kept."""

ToolSeconds = dict[str, tuple[float, ...]]


class TimingFile:
    """The tool times in one file, by task and attempt."""

    def __init__(self, path: Path) -> None:
        self.tail = FileTail(path)
        self._times: dict[AttemptKey, ToolSeconds] = {}

    def times_of(self, key: AttemptKey) -> ToolSeconds | None:
        if key not in self._times:
            self._read()
        return self._times.get(key)

    def _read(self) -> None:
        if self.tail.changed():
            self.tail, self._times = FileTail(self.tail.path), {}
        for line in self.tail.lines():
            try:
                row = parse_object(line)
                key = (str(row["task_id"]), int(row["attempt"]))
                self._times[key] = _tool_seconds(row.get("tools"))
            except (ValueError, KeyError, TypeError, OverflowError):  # a training's own times, or a damaged line
                continue


class ToolTimes:
    """The tool times of all episodes below a run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[Path, TimingFile] = {}

    def times_of(self, name: str, key: AttemptKey) -> ToolSeconds:
        """Return the seconds of the tool calls of one episode; `name` is its file, a path below the run's folder."""
        folder = (self.folder / name).parent
        for candidate in (folder, folder.parent) if folder != self.folder else (folder,):
            file = self._files.setdefault(candidate, TimingFile(candidate / TIMING_FILE))
            times = file.times_of(key)
            if times is not None:
                return times
        return {}


def _tool_seconds(value: Any) -> ToolSeconds:
    """Numbers of seconds by tool, as far as the value is that."""
    if not isinstance(value, dict):
        return {}
    return {
        tool_name(name): tuple(
            round(float(duration), 6)
            for duration in seconds[:MAX_CALLS]
            if is_number(duration) and math.isfinite(duration) and duration >= 0
        )
        for name, seconds in list(value.items())[:MAX_TOOLS]
        if isinstance(seconds, list)
    }
