"""Rows of published data sets: JSON, JSON lines (`.gz` or not), parquet, and folders of JSON files."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from practicum.data.jsonl import list_or_lines, read_text
from practicum.errors import UserError


def read_dataset_rows(path: Path) -> list[tuple[str, Any]]:
    """Return location and value of every row of a file.

    A folder is read as its JSON files, one row each, as MATH is published. The answer of Hugging Face's dataset viewer
    (`{"rows": [{"row": ...}]}`) is read as its rows.
    """
    if path.is_dir():
        files = sorted(path.rglob("*.json"), key=lambda file: (file.parent, len(file.name), file.name))
        if not files:
            raise UserError(f"The folder '{path}' has no JSON files.")
        return [(str(file.relative_to(path)), row) for file in files for _, row in list_or_lines(read_text(file), file)]
    if path.suffix == ".parquet":
        return [(f"row {index}", row) for index, row in enumerate(_read_parquet(path))]
    rows = list(list_or_lines(read_text(path), path))
    match rows:
        case [(_, {"rows": [*viewed]})] if all(isinstance(row, Mapping) and "row" in row for row in viewed):
            return [(f"row {row.get('row_idx', index)}", row["row"]) for index, row in enumerate(viewed)]
    return rows


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(
            f"'{path}' is a parquet file, which the package pyarrow reads: pip install 'practicum[parquet]'."
        ) from None
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise UserError(f"'{path}' is not a parquet file that can be read: {str(error).splitlines()[0]}.") from None
    return rows
