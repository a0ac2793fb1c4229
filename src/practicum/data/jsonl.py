"""JSON lines in and out: what is wrong is named by file, line and field, and files are written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from practicum.data import store
from practicum.errors import UserError
from practicum.trajectory import Origin, Trajectory

LINE_LIMIT = 64 * 2**20
"""Bytes that a line may have; a longer one is no record of ours, and reading on would fill the memory."""

STEP_FIELDS = ("restart", "messages", "spans", "reply", "action", "source", "policy_version", "stop_reason", "seed",
               "reward", "parts", "progress", "info")  # fmt: skip
FIELDS: Mapping[str, Sequence[str]] = {
    "episode_start": ("format", "task", "attempt", "group", "seeds", "provenance"),
    "step": ("index", *STEP_FIELDS),
    "episode_end": ("outcome", "reward", "parts", "closing", "error"),
}


def read_rows(path: Path, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Objects of a JSON-lines file, each with these fields as texts that are not empty; blank lines are no rows."""
    return [check_row(row, fields, f"'{path}', line {number}") for number, row in read_objects(path)]


def read_objects(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with the number of its line."""
    rows = [(number, _object(path, number, line)) for number, line in enumerate(read_lines(path), 1) if line.strip()]
    if not rows:
        raise UserError(f"'{path}' is empty; make it with `practicum export`.")
    return rows


def check_row(row: Mapping[str, Any], fields: Sequence[str], place: str) -> dict[str, Any]:
    """The row, if it has these fields as texts with something in them."""
    for field in fields:
        if field not in row:
            raise UserError(f"{place} lacks '{field}' (it has: {', '.join(map(str, row)) or 'nothing'}).")
        if not isinstance(row[field], str) or not row[field].strip():
            raise UserError(f"{place}: '{field}' must be a text that is not empty.")
    return dict(row)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file with their ends, none longer than the limit."""
    try:
        with path.open("rb") as file:
            number = 1
            while line := file.readline(LINE_LIMIT + 1):
                if len(line) > LINE_LIMIT:
                    raise UserError(f"'{path}', line {number} has more than {LINE_LIMIT >> 20} MiB; that is no record.")
                yield line
                number += 1
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror}.") from None


def read_whole_episode(path: Path) -> Trajectory:
    """An episode whose every field has been looked at; what is wrong is named by line and field."""
    data = b"".join(read_lines(path))
    try:
        episode = store.load(data)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise UserError(f"'{path}', {_fault(path, data, error)}.") from None
    for line, field, right in _checks(episode):
        if not right:
            raise UserError(f"'{path}', line {line}: '{field}' is not what an episode has there.")
    return episode


def write_files(folder: Path, files: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, int]:
    """Put JSON-lines files into a folder: all of them, or none and one clear error. Returns the rows of each."""
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    ready: dict[Path, str] = {}
    counts: dict[str, int] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in files.items():
            handle, scratch = tempfile.mkstemp(dir=folder, prefix=".writing-")
            ready[folder / name] = scratch
            counts[name] = 0
            with os.fdopen(handle, "wb") as file:
                for row in rows:
                    file.write(encode(row))
                    counts[name] += 1
                file.flush()
                os.fsync(file.fileno())
        for path, scratch in ready.items():
            os.replace(scratch, path)
    except BaseException as error:
        for scratch in ready.values():
            with contextlib.suppress(OSError):
                os.unlink(scratch)
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError):
            raise UserError(f"Cannot write to '{folder}': {error.strerror}; choose another --output_dir.") from error
        raise
    return counts


def encode(row: Mapping[str, Any]) -> bytes:
    """One line. Lone surrogates (half an emoji that a model sampled) have no UTF-8 form: they are kept as escapes."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}', line {number} is not UTF-8 text (byte {error.start}).") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{path}', line {number} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise UserError(f"'{path}', line {number}: expected an object, found {type(value).__name__}.")
    return value


def _fault(path: Path, data: bytes, error: Exception) -> str:
    """Where in a broken episode the fault lies."""
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
        try:
            record = _object(path, number, line)
        except UserError as fault:
            return str(fault).removeprefix(f"'{path}', ").rstrip(".")
        kind = str(record.get("type"))
        if kind not in FIELDS:
            return f"line {number}: 'type' is '{kind}', not one of {', '.join(FIELDS)}"
        for field in FIELDS[kind]:
            if field not in record:
                return f"line {number} lacks '{field}'"
    return f"not a whole episode: {type(error).__name__}: {error}"


def _checks(episode: Trajectory) -> Iterator[tuple[int, str, bool]]:
    """Line, field, and whether the field holds what it should."""
    yield 1, "task.id", isinstance(episode.task.id, str) and bool(episode.task.id)
    yield 1, "provenance", isinstance(episode.provenance, Mapping)
    for name in ("temperature", "top_k", "top_p"):
        yield 1, f"provenance.{name}", name not in episode.provenance or _is_number(episode.provenance[name])
    last = len(episode.turns) + 2
    for number, turn in enumerate(episode.turns):
        line = number + 2
        yield line, "reply", isinstance(turn.reply, str)
        yield line, "messages", all(_is_message(m.role, m.content) for m in turn.messages)
        yield line, "spans", bool(turn.spans) and turn.spans[-1].origin is Origin.SAMPLED
        yield line, "spans", all(type(i) is int and 0 <= i < 2**31 for span in turn.spans for i in span.ids)
        yield line, "spans", all(_is_logprob(value) for span in turn.spans for value in span.logprobs or ())
        yield line, "spans", not (number == 0 or turn.restart) or bool(turn.spans[0].origin is not Origin.SAMPLED)
        yield line, "reward", _is_number(turn.reward)
        yield line, "parts", all(map(_is_number, turn.components.values()))
        yield line, "progress", turn.progress is None or _is_number(turn.progress)
        yield line, "info", isinstance(turn.info, Mapping)
    yield last, "reward", _is_number(episode.reward)
    yield last, "parts", all(map(_is_number, episode.components.values()))
    yield last, "closing", all(_is_message(m.role, m.content) for m in episode.closing)


def _is_message(role: object, content: object) -> bool:
    return isinstance(role, str) and isinstance(content, str)


def _is_logprob(value: object) -> bool:
    """A last digit above 0 is rounding; more is no probability."""
    return isinstance(value, (int, float)) and _is_number(value) and value < 1e-3


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
