"""Which code trained a run, and on which machine: what `version.json` says."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from practicum.utils.regular_files import open_regular
from practicum.utils.terminal import escape_invisible

VERSION_FILE = "version.json"
MAX_VERSION_BYTES = 256 << 10
MAX_VERSIONS = 20
VERSION_FIELDS = ("practicum", "commit", "python", "machine")
MAX_TEXT_CHARACTERS = 200


def run_versions(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """The versions that wrote to these folders, each once, in the order of the first; none where none is readable."""
    versions: list[dict[str, Any]] = []
    for folder in folders:
        for version in _read_versions(folder / VERSION_FILE):
            if version not in versions and len(versions) < MAX_VERSIONS:
                versions.append(version)
    return versions


def _read_versions(path: Path) -> list[dict[str, Any]]:
    try:
        with open_regular(path) as file:
            data = file.read(MAX_VERSION_BYTES + 1)
        rows = json.loads(data) if len(data) <= MAX_VERSION_BYTES else []
    except (OSError, ValueError, RecursionError):
        return []
    return [_version(row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _version(row: dict[str, Any]) -> dict[str, Any]:
    texts = {
        name: escape_invisible(row[name][:MAX_TEXT_CHARACTERS])
        for name in VERSION_FIELDS
        if isinstance(row.get(name), str)
    }
    return {**texts, "changed": row.get("changed") is True}
