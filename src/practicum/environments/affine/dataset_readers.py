"""Readers of published datasets for `affine:abd` and `affine:ded`, recognised by their fields.

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
from practicum.data.convert_rows import InvalidRow, Row, text_field
from practicum.data.dataset_rows import read_dataset_rows
from practicum.data.jsonl import list_or_lines, read_text
from practicum.environments.affine.program_runner import Job, run_jobs, stdin_text
from practicum.environments.affine.test_cases import read_cases, read_verification
from practicum.errors import UserError
from practicum.task import Task, split_of_content

HINT = "The program reads standard input and prints the answer and nothing else."
CRUX_CALL = 'import ast\nprint(repr(f(*ast.literal_eval("[" + input() + "]"))))'
"""Arguments are parsed as literals: an input can be any value but not code. There may be none."""
CODE_NAMES = {"exec", "compile", "__import__", "__builtins__", "breakpoint"}
CODE_MODULES = {"builtins", "code", "ctypes", "importlib", "pickle", "runpy", "subprocess"}


class SkippedRow(Exception):
    """A well-formed row that cannot be a task."""


Reader = Callable[[Mapping[str, Any], int], Row]


def abduction(row: Mapping[str, Any], index: int) -> Row:
    """Read a row with a program and its output."""
    if "code" in row and "program" not in row:
        return _crux(row)
    output = row.get("output")
    if output is None or not stdin_text(output).strip():
        raise SkippedRow("its output is empty")
    stdin = row.get("inputs", row.get("input"))
    if runs_input_as_code(text_field(row, "program")):
        raise SkippedRow("its program can run its input as code")
    answer = {} if stdin is None else {"input": stdin_text(stdin).rstrip("\n")}
    return {**_metadata(row), "program": text_field(row, "program"), "output": stdin_text(output), **answer}


def runs_input_as_code(program: str) -> bool:
    """Return whether a program can run its input as code by other means than a call of `eval`, which is replaced."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if name in CODE_NAMES:
                return True
            case ast.Attribute(attr="eval" | "exec"):
                return True
            case ast.Import(names=names) if any(alias.name.partition(".")[0] in CODE_MODULES for alias in names):
                return True
            case ast.ImportFrom(module=str(name)) if name.partition(".")[0] in {*CODE_MODULES, "__future__"}:
                return True  # after `from __future__` the replacement of eval could not be defined
    return False


def _crux(row: Mapping[str, Any]) -> Row:
    code, output = text_field(row, "code"), text_field(row, "output")
    stdin = row.get("input")
    if not isinstance(stdin, str):
        raise InvalidRow("'input' must be a text")
    if not _is_literal(f"[{stdin}]"):
        stdin = _evaluated_arguments(code, stdin)
    # An output that is not a literal is compared as text.
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        output = repr(ast.literal_eval(output))
    return {**_metadata(row), "program": f"{code.rstrip()}\n\n{CRUX_CALL}", "output": output, "input": stdin.strip()}


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def _evaluated_arguments(code: str, arguments: str) -> str:
    """Return arguments that are expressions (`'a' + 'b'`, a name of the program) as literals, by a sandbox."""
    (run,) = run_jobs([Job(f"{code}\n\nprint(repr([{arguments}]))", "")])
    values = run.output.strip()
    if not run.ok or not _is_literal(values):
        raise SkippedRow("its input is not made of literals")
    return values[1:-1]


def deduction(row: Mapping[str, Any], index: int) -> Row:
    """Read a row with a problem and its tests."""
    if "entry_point" in row and "test" in row:
        return convert.humaneval(row, index)
    if "test_list" in row:
        return convert.mbpp(row, index)
    if "question" in row:
        question, tests = text_field(row, "question"), row.get("test_cases")
    else:
        question = f"{text_field(row, 'prompt').rstrip()}\n\n{HINT}"
        tests = row.get("verification_info") or row.get("test_cases")
    if isinstance(tests, list) and tests and all(isinstance(test, str) for test in tests):
        return {**row, "question": question}
    try:
        cases = read_verification(tests)
        read_cases(cases)
    except ValueError as error:
        raise InvalidRow(f"its tests cannot be used: {error}") from None
    solution = next((row[key] for key in ("solution", "program") if isinstance(row.get(key), str)), None)
    answer = {} if solution is None else {"solution": solution}
    return {**_metadata(row), "question": question, "test_cases": cases, **answer}


def _metadata(row: Mapping[str, Any]) -> Row:
    return {key: row[key] for key in ("id", "task_id", "level", "template") if key in row}


def tasks(files: Mapping[str, str], split: str, environment: str, read: Reader) -> list[Task]:
    """Return the tasks of a split's file. If several splits share a file, each row's content decides its split."""
    path = files[split]
    rows = _rows(Path(path), read)
    shared = sum(other == path for other in files.values()) > 1
    fields = []
    for name, row in rows:
        if not shared or split_of_content(row) == split:
            fields.append(Task(name, environment, split, row))
    return fields


def _rows(path: Path, read: Reader) -> Sequence[tuple[str, Row]]:
    """Return ids and fields of a file's rows; the file is read again only if it has changed."""
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"Dataset '{path}' cannot be read: {error.strerror}.") from None
    return _read_rows(path, read, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _read_rows(path: Path, read: Reader, changed: int, size: int) -> tuple[tuple[str, Row], ...]:
    rows: list[tuple[str, Row]] = []
    skipped: dict[str, int] = {}
    seen: set[str] = set()
    for index, (location, row) in enumerate(_objects(path)):
        try:
            if not isinstance(row, Mapping):
                raise InvalidRow(f"expected an object, found {type(row).__name__}")
            fields = read(row, index)
        except InvalidRow as error:
            raise UserError(f"'{path}', {location}: {error}.") from None
        except SkippedRow as reason_skipped:
            skipped[str(reason_skipped)] = skipped.get(str(reason_skipped), 0) + 1
            continue
        name = str(fields.get("id", fields.get("task_id", f"{path.stem}-{index}"))).replace("/", "-")
        if name in seen:
            raise UserError(f"'{path}', {location}: the id '{name}' is used twice; ids must be unique.")
        seen.add(name)
        rows.append((name, fields))
    for reason, count in skipped.items():
        print(f"{path}: {count} rows left out, {reason}", file=sys.stderr)
    if not rows:
        raise UserError(f"'{path}' holds no task for this environment.")
    return tuple(rows)


def _objects(path: Path) -> list[tuple[str, Any]]:
    """Return the rows of a file, or of the chunks that a folder's `index.json` lists."""
    index = path / "index.json" if path.is_dir() else path
    manifest = None
    if index.name == "index.json":
        text = read_text(index)
        try:
            manifest = json.loads(text)
        except ValueError as error:
            raise UserError(f"'{index}' is not JSON: {error}.") from None
    if not isinstance(manifest, Mapping) or "files" not in manifest:
        return read_dataset_rows(index)
    rows: list[tuple[str, Any]] = []
    for entry in manifest["files"]:
        name = entry.get("filename") or entry.get("key") if isinstance(entry, Mapping) else entry
        if not isinstance(name, str) or not name:
            raise UserError(f"'{index}': a file is listed without a 'filename' or 'key'.")
        chunk = index.parent / Path(name).name  # a key is a path in the bucket; the chunk is in the folder of its index
        rows += [(f"{chunk.name}, {location}", row) for location, row in list_or_lines(read_text(chunk), chunk)]
    return rows
