"""Data sets by their hub id (OWNER/NAME): read through the package `datasets`, kept as JSON lines in the cache."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from practicum.data.run_folder import write_atomic
from practicum.errors import UserError
from practicum.models.loader import cache_folder

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def local_path(name: str) -> Path:
    """The file of a data set: the path itself, or that of a hub id's rows in the cache, whether it is there or not."""
    path = Path(name).expanduser()
    is_hub_id = HUB_ID.fullmatch(name) is not None and not name.startswith(".")
    return cached_file(name) if is_hub_id and not path.exists() else path


def fetch_dataset(name: str, buffer_size: int = 5) -> None:
    """Fetch the rows of a hub id into the cache, unless they are there or the name is a path.

    `buffer_size` rows are requested at a time.
    """
    path = local_path(name)
    if path == cached_file(name) and not path.is_file():
        rows = _fetch(name, buffer_size)
        write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def cached_file(name: str) -> Path:
    return cache_folder() / "datasets" / f"{name.replace('/', '--')}.jsonl"


def _fetch(name: str, buffer_size: int) -> Iterator[dict[str, Any]]:
    """The rows of the data set's split `train`, else of all its splits."""
    remedy = (
        f"put its rows into a file of JSON lines at '{cached_file(name)}', or name a file (or a folder with index.json)"
    )
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError:
        raise UserError(
            f"'{name}' is no file here; to read it from the hub: pip install 'practicum[datasets]'. Or {remedy}."
        ) from None
    try:
        splits = datasets.load_dataset(name, streaming=True)
        chosen = [splits["train"]] if "train" in splits else list(splits.values())
        for split in chosen:
            for batch in split.iter(batch_size=buffer_size):
                columns = list(batch)
                yield from (dict(zip(columns, row, strict=True)) for row in zip(*batch.values(), strict=True))
    except Exception as error:  # network, hub, missing data set, parquet: each library has errors of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"'{name}' is no file here, and the hub did not give it ({reason}); {remedy}.") from error
