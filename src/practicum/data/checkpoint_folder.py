"""The folders `global_step_N` of a training run: listing them, sealing one with a manifest, checking it before use.

`manifest.json` holds the SHA-256 of every file of a checkpoint. One that was torn or edited no longer fits its
manifest, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

MANIFEST = "manifest.json"
CHECKPOINT_NAME = re.compile(r"global_step_(\d+)")


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint folder, valid or not, oldest first."""
    matches = (CHECKPOINT_NAME.fullmatch(path.name) for path in folder.glob("global_step_*"))
    return sorted(int(match[1]) for match in matches if match)


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"global_step_{step}"


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest valid checkpoint of a run, and a sentence for each damaged one that was skipped."""
    warnings: list[str] = []
    for step in reversed(checkpoint_steps(folder)):
        path = checkpoint_path(folder, step)
        damage = damage_of(path)
        if damage is None:
            return path, warnings
        warnings.append(f"Checkpoint '{path}' is damaged ({damage}); the one before it is used.")
    return None, warnings


def damage_of(path: Path) -> str | None:
    """What is wrong with a checkpoint folder; None when every file is what the manifest says."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        files: dict[str, str] = manifest["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest is missing or unreadable"
    for name, digest in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if _digest(file) != digest:
            return f"{name} is not what was written"
    return None


def seal(folder: Path) -> None:
    """Flush every file to the disk and write its hash into the manifest, which comes last."""
    digests = {}
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        sync(file)
        digests[str(file.relative_to(folder))] = _digest(file)
    (folder / MANIFEST).write_text(json.dumps({"files": digests}, indent=1))
    sync(folder / MANIFEST)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
