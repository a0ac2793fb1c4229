"""Episodes on disk: one JSON-lines file each, whole or not there at all.

`<out>/<experiment>/<run_id>/<task>__attempt_<k>.jsonl`, in the encoding of `episode_format`. A file is written under a
temporary name, flushed to the disk and renamed; a crash or a full disk leaves no half of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from practicum.data.episode_format import DECODE_ERRORS, decode_episode, decode_fault, encode_episode, wrong_field
from practicum.data.jsonl import read_lines
from practicum.errors import UserError
from practicum.task import content_hash
from practicum.trajectory import Trajectory
from practicum.utils.progress import Progress

EPISODE_MARK = "__attempt_"
"""What the name of every episode file contains."""
MAX_NAME_CHARS = 180
"""Characters of an escaped task id in a file name; file systems allow 255 bytes for a name."""


class EpisodeFileError(UserError):
    """A file that is not a whole episode; `reason` says why, without the path."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"'{path}' is not a whole episode file: {reason}.")
        self.reason = reason


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file under a temporary name and rename it: all bytes are there, or none and a UserError says why."""
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise UserError(f"Cannot write '{path}': {_remedy(path, error)}.") from error


def _remedy(path: Path, error: OSError) -> str:
    """Say why a path cannot be written to, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}; free some space or write elsewhere"
    if isinstance(error, NotADirectoryError | FileExistsError):
        files = [str(above) for above in path.parents if os.path.exists(above) and not above.is_dir()]
        if files:
            return f"'{files[0]}' is a file, not a folder; write elsewhere"
    return f"{error.strerror}; write elsewhere"


def episode_path(folder: Path, task_id: str, attempt: int) -> Path:
    """Return the path of an episode. A task id is a name, never a path: characters that could leave the folder are
    escaped."""
    name = quote(task_id, safe=" :,+=@()[]")
    name = re.sub(r"^\.+", lambda dots: "%2E" * len(dots[0]), name)
    if len(name) > MAX_NAME_CHARS:  # the hash keeps two long ids apart
        name = f"{name[:160]}~{content_hash(task_id)}"
    return folder / f"{name}{EPISODE_MARK}{attempt}.jsonl"


def write_episode(folder: Path, trajectory: Trajectory) -> Path:
    """Write an episode into a folder and return its path."""
    path = episode_path(folder, trajectory.task.id, trajectory.attempt)
    write_atomic(path, encode_episode(trajectory))
    return path


def read_episode(path: Path, *, validate: bool = False, max_bytes: int | None = None) -> Trajectory:
    """Return the episode of a file; raise EpisodeFileError where it is not a whole one.

    With `validate` every field that training and export use is checked, which episodes of unknown origin need. A file
    of more than `max_bytes` is refused unread.
    """
    if not path.is_file():
        raise UserError(f"There is no episode at '{path}'.")
    if max_bytes is not None and (size := path.stat().st_size) > max_bytes:
        raise EpisodeFileError(path, f"it has {size >> 20} MiB; an episode has at most {max_bytes >> 20}")
    data = b"".join(read_lines(path))
    try:
        episode = decode_episode(data)
    except DECODE_ERRORS as error:
        raise EpisodeFileError(path, decode_fault(data, error)) from None
    if validate and (fault := wrong_field(episode)) is not None:
        raise EpisodeFileError(path, fault)
    return episode


def read_episodes(folder: Path) -> Iterator[Trajectory]:
    """Yield every episode below a folder, in the order of the paths."""
    for path in _episode_files(folder):
        yield read_episode(path)


def read_training_episodes(
    folder: Path, *, include_held_out: bool = False, include_setting: str | None = None, progress: bool = True
) -> list[tuple[Path, Trajectory]]:
    """Return path and episode of every validated episode below a folder, in the order of the paths.

    Episodes of `val` and `test` tasks are left out unless `include_held_out`: a policy trained on a task can no longer
    be evaluated on it. How many are left out is printed, with the setting that includes them. A folder without any
    episode to train on is a UserError.
    """
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}'; make one with `practicum collect`.")
    paths = _episode_files(folder)
    if not paths:
        raise UserError(f"There is no episode below '{folder}'; make some with `practicum collect`.")
    episodes: list[tuple[Path, Trajectory]] = []
    held_out_splits: list[str] = []
    with Progress("read", len(paths), "episodes", shown=progress) as line:
        for path in paths:
            episode = read_episode(path, validate=True)
            if include_held_out or episode.task.split == "train":
                episodes.append((path, episode))
            else:
                held_out_splits.append(episode.task.split)
            line.advance()
    if held_out_splits:
        _report_held_out(folder, held_out_splits, not episodes, include_setting)
    return episodes


def _report_held_out(folder: Path, splits: list[str], nothing_left: bool, include_setting: str | None) -> None:
    named = f"{len(splits)} episodes of held-out tasks ({', '.join(sorted(set(splits)))})"
    if nothing_left:
        otherwise = f", or take these by {include_setting}" if include_setting else ""
        raise UserError(f"Below '{folder}' there are only {named}; collect some with --split train{otherwise}.")
    print(f"{named} are left out" + (f"; {include_setting} takes them" if include_setting else ""), flush=True)


def _episode_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob(f"*{EPISODE_MARK}*.jsonl"))
