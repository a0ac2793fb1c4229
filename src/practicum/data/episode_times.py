"""Times of episodes and of their tool calls: `timing.jsonl` beside the episodes, which do not depend on the clock."""

from __future__ import annotations

from pathlib import Path

from practicum.data.jsonl import encode, iter_readable_objects
from practicum.errors import UserError
from practicum.trajectory import Trajectory

TIMING_FILE = "timing.jsonl"

AttemptKey = tuple[str, int]
"""A task's id and the number of the attempt."""


def append_times(path: Path, episode: Trajectory, seconds: float | None = None) -> None:
    """Append a line for an episode: the seconds that it took, where they are known, and those of its tool calls.

    It is written before the episode's file, so that whoever sees the episode finds it. Of two lines of one attempt the
    later one counts.
    """
    row = {"task_id": episode.task.id, "attempt": episode.attempt, "seconds": seconds}
    if episode.tool_seconds:
        row["tools"] = {name: list(values) for name, values in episode.tool_seconds.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(encode(row))
    except OSError as error:
        raise UserError(f"Cannot write '{path}': {error.strerror}; free some space.") from error


def read_seconds(path: Path) -> dict[AttemptKey, float]:
    """Seconds of each attempt that the file holds; a line that a crash cut short is skipped."""
    seconds: dict[AttemptKey, float] = {}
    for row in iter_readable_objects(path):
        try:
            seconds[row["task_id"], int(row["attempt"])] = float(row["seconds"])
        except (ValueError, KeyError, TypeError):
            continue
    return seconds
