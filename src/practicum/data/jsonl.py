"""JSON lines in and out.

Reading names what is wrong by file, line and field. Writing puts all files in place or none. The reader for files that
a running or killed process may have cut short (`iter_readable_objects`) skips what is not a whole object.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from practicum.data.run_folder import create_temporary
from practicum.errors import UserError

MAX_LINE_BYTES = 64 * 2**20
"""Bytes that a line may have. A longer one is not a record of ours, and reading on would fill the memory."""


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file with their line ends; raise UserError at one longer than MAX_LINE_BYTES."""
    try:
        with path.open("rb") as file:
            line_number = 1
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(
                        f"'{path}', line {line_number} has more than {MAX_LINE_BYTES >> 20} MiB; that is no record."
                    )
                yield line
                line_number += 1
    except OSError as error:
        raise UserError(f"Cannot read '{path}': {error.strerror}.") from None


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, compressed (`.gz`) or not, without its byte order mark."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"'{path}' is not a whole gzip file: {error}.") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}.") from None


def parse_object(line: bytes | str) -> dict[str, Any]:
    """Return the JSON object on a line; raise ValueError (UnicodeDecodeError where it is not UTF-8) if it has none."""
    try:
        value = json.loads(line.decode("utf-8") if isinstance(line, bytes) else line)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {type(value).__name__}")
    return value


def parse_json(text: str, path: Path, line: int | None = None) -> Any:
    """Return the JSON value of a text; raise UserError naming the file and the line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line_number = line or getattr(error, "lineno", 1)
        raise UserError(f"'{path}', line {line_number} is not JSON: {getattr(error, 'msg', error)}.") from None


def iter_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and object of every line that is not blank; raise UserError at a line that has no object."""
    for line_number, line in enumerate(read_lines(path), 1):
        if line.strip():
            try:
                yield line_number, parse_object(line)
            except UnicodeDecodeError as error:
                raise UserError(f"'{path}', line {line_number} is not UTF-8 text (byte {error.start}).") from None
            except ValueError as error:
                raise UserError(f"'{path}', line {line_number} is not JSON: {error}.") from None
            except TypeError as error:
                raise UserError(f"'{path}', line {line_number}: {error}.") from None


def iter_readable_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file that may be cut short or absent; lines that are no object are skipped."""
    with contextlib.suppress(UserError):
        for line in read_lines(path):
            with contextlib.suppress(ValueError, TypeError):
                yield parse_object(line)


def read_objects(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return line number and object of every line; raise UserError for a file without any."""
    rows = list(iter_objects(path))
    if not rows:
        raise UserError(f"'{path}' is empty; make it with `practicum export`.")
    return rows


def read_rows(path: Path, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects of a file, each of which must have these fields as non-empty texts."""
    return [check_row(row, fields, f"'{path}', line {line_number}") for line_number, row in read_objects(path)]


def check_row(row: Mapping[str, Any], fields: Sequence[str], location: str) -> dict[str, Any]:
    """Return the row if it has these fields as non-empty texts; raise UserError beginning with `location` if not."""
    for field in fields:
        if field not in row:
            raise UserError(f"{location} lacks '{field}' (it has: {', '.join(map(str, row)) or 'nothing'}).")
        if not isinstance(row[field], str) or not row[field].strip():
            raise UserError(f"{location}: '{field}' must be a text that is not empty.")
    return dict(row)


def list_or_lines(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the values of a JSON list ("row 0", ...), of a file with one value per line ("line 1", ...), or the one
    object that a file has over several lines."""
    if text.lstrip().startswith("["):
        yield from ((f"row {index}", value) for index, value in enumerate(parse_json(text, path)))
        return
    lines = [(line_number, line) for line_number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if lines and not _is_json(lines[0][1]):
        yield "row 0", parse_json(text, path)
        return
    for line_number, line in lines:
        yield f"line {line_number}", parse_json(line, path, line_number)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def write_files(folder: Path, files: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, int]:
    """Write JSON-lines files into a folder, all of them or none, and return the number of rows of each.

    Each file is written under a temporary name; only when all are on the disk are they renamed. If anything fails, the
    temporary files and the folders made for them are removed.
    """
    new_folders = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    temporary: dict[Path, str] = {}
    counts: dict[str, int] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in files.items():
            handle, temporary_path = create_temporary(folder)
            temporary[folder / name] = temporary_path
            counts[name] = 0
            with os.fdopen(handle, "wb") as file:
                for row in rows:
                    file.write(encode(row))
                    counts[name] += 1
                file.flush()
                os.fsync(file.fileno())
        for path, temporary_path in temporary.items():
            os.replace(temporary_path, path)
    except BaseException as error:
        for temporary_path in temporary.values():
            with contextlib.suppress(OSError):
                os.unlink(temporary_path)
        for parent in new_folders:
            with contextlib.suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError):
            raise UserError(f"Cannot write to '{folder}': {error.strerror}; choose another --output_dir.") from error
        raise
    return counts


def encode(row: Mapping[str, Any]) -> bytes:
    """Return one line. Lone surrogates (half an emoji that a model sampled) have no UTF-8 form and become escapes."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"
