"""Task files for `affine:abd` and `affine:ded` as their authors publish them, known by their fields.

* R2 (`satpalsr/rl-python`): `program`, `inputs`, `output` for abduction; `prompt` and `verification_info` (or
  `test_cases`) for deduction. A file of rows, or the folder with `index.json` and its chunks.
* CRUXEval: `code` that defines `f`, `input` (its arguments) and `output`; for abduction.
* HumanEval and MBPP, by the readers of `practicum convert`; for deduction.
* Practicum's own: the fields of generated tasks.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from practicum.data import convert
from practicum.data.convert import Bad, Row, text_field
from practicum.data.jsonl import list_or_lines, read_text
from practicum.environments.affine.base import SPLIT_OF_BUCKET
from practicum.environments.affine.cases import read_cases, read_verification
from practicum.environments.affine.running import stdin_text
from practicum.errors import UserError
from practicum.task import Task, content_hash

HINT = "The program reads standard input and prints the answer and nothing else."
CRUX_CALL = 'import ast\nprint(repr(f(*ast.literal_eval("(" + input() + ",)"))))'
"""Arguments are read as literals: an input can be any value, and never code."""


class LeftOut(Exception):
    """A row that makes no task through no fault of its form."""


Reader = Callable[[Mapping[str, Any], int], Row]


def abduction(row: Mapping[str, Any], number: int) -> Row:
    """A row with a program and its output."""
    if "code" in row and "program" not in row:
        return _crux(row)
    output = row.get("output")
    if output is None or not stdin_text(output).strip():
        raise LeftOut("its output is empty")
    given = row.get("inputs", row.get("input"))
    known = {} if given is None else {"input": stdin_text(given).rstrip("\n")}
    return {**_about(row), "program": text_field(row, "program"), "output": stdin_text(output), **known}


def _crux(row: Mapping[str, Any]) -> Row:
    code, given, output = (text_field(row, name) for name in ("code", "input", "output"))
    try:
        ast.literal_eval(f"({given},)")
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise LeftOut("its input is not made of literals") from None
    # What is not a literal is compared as it stands.
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        output = repr(ast.literal_eval(output))
    return {**_about(row), "program": f"{code.rstrip()}\n\n{CRUX_CALL}", "output": output, "input": given.strip()}


def deduction(row: Mapping[str, Any], number: int) -> Row:
    """A row with a problem and its tests."""
    if "entry_point" in row and "test" in row:
        return convert.humaneval(row, number)
    if "test_list" in row:
        return convert.mbpp(row, number)
    if "question" in row:
        asked, tests = text_field(row, "question"), row.get("test_cases")
    else:
        asked = f"{text_field(row, 'prompt').rstrip()}\n\n{HINT}"
        tests = row.get("verification_info") or row.get("test_cases")
    if isinstance(tests, list) and tests and all(isinstance(test, str) for test in tests):
        return {**row, "question": asked}
    try:
        cases = read_verification(tests)
        read_cases(cases)
    except ValueError as error:
        raise Bad(f"its tests cannot be used: {error}") from None
    solution = next((row[key] for key in ("solution", "program") if isinstance(row.get(key), str)), None)
    known = {} if solution is None else {"solution": solution}
    return {**_about(row), "question": asked, "test_cases": cases, **known}


def _about(row: Mapping[str, Any]) -> Row:
    return {key: row[key] for key in ("id", "task_id", "level", "template") if key in row}


def tasks(files: Mapping[str, str], split: str, environment: str, read: Reader) -> list[Task]:
    """The tasks of a split's file. Where one file serves several splits, each row's content says whose it is."""
    path = files[split]
    rows = _rows(Path(path), read)
    shared = sum(other == path for other in files.values()) > 1
    made = []
    for name, row in rows:
        bucket = SPLIT_OF_BUCKET[int(content_hash(row), 16) % 10]
        if not shared or bucket == split:
            made.append(Task(name, environment, split, row))
    return made


def _rows(path: Path, read: Reader) -> Sequence[tuple[str, Row]]:
    """Ids and fields of a file's rows, read again only when the file has changed."""
    try:
        stamp = path.stat()
    except OSError as error:
        raise UserError(f"Dataset '{path}' cannot be read: {error.strerror}.") from None
    return _rows_once(path, read, stamp.st_mtime_ns, stamp.st_size)


@functools.lru_cache(maxsize=8)
def _rows_once(path: Path, read: Reader, changed: int, size: int) -> tuple[tuple[str, Row], ...]:
    rows: list[tuple[str, Row]] = []
    left_out: dict[str, int] = {}
    seen: set[str] = set()
    for number, (place, row) in enumerate(_objects(path)):
        try:
            if not isinstance(row, Mapping):
                raise Bad(f"expected an object, found {type(row).__name__}")
            made = read(row, number)
        except Bad as error:
            raise UserError(f"'{path}', {place}: {error}.") from None
        except LeftOut as fault:
            left_out[str(fault)] = left_out.get(str(fault), 0) + 1
            continue
        name = str(made.get("id", made.get("task_id", f"{path.stem}-{number}"))).replace("/", "-")
        if name in seen:
            raise UserError(f"'{path}', {place}: the id '{name}' is used twice; ids must be unique.")
        seen.add(name)
        rows.append((name, made))
    for reason, count in left_out.items():
        print(f"{path}: {count} rows left out, {reason}", file=sys.stderr)
    if not rows:
        raise UserError(f"'{path}' holds no task for this environment.")
    return tuple(rows)


def _objects(path: Path) -> list[tuple[str, Any]]:
    """The rows of a file, or of the chunks that a folder's `index.json` lists."""
    index = path / "index.json" if path.is_dir() else path
    text = read_text(index)
    whole = None
    if index.name == "index.json":
        try:
            whole = json.loads(text)
        except ValueError as error:
            raise UserError(f"'{index}' is not JSON: {error}.") from None
    if not isinstance(whole, Mapping) or "files" not in whole:
        return list(list_or_lines(text, index))
    found: list[tuple[str, Any]] = []
    for entry in whole["files"]:
        named = entry.get("filename") or entry.get("key") if isinstance(entry, Mapping) else entry
        if not isinstance(named, str) or not named:
            raise UserError(f"'{index}': a file is listed without a 'filename' or 'key'.")
        chunk = index.parent / Path(named).name  # a key is a whole path in the store; the chunk lies beside its index
        found += [(f"{chunk.name}, {place}", row) for place, row in list_or_lines(read_text(chunk), chunk)]
    return found
