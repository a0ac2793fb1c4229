"""Runs on disk: folders with metrics, episodes or a result, found below given folders."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from practicum.data.store import EPISODE_MARK
from practicum.errors import UserError
from practicum.report.stage_order import stage_key
from practicum.utils.regular_files import is_regular

METRICS, TIMING, HEALTH, CONFIG = "metrics.jsonl", "timing.jsonl", "health.jsonl", "config.yaml"
PLAN = "plan.json"
"""The settings of a quickstart."""
RUN_FILES = frozenset({METRICS, CONFIG, PLAN, "summary.json", "collect.json", "panel.json"})
"""Files that make a folder, with everything below it, one run."""
SKIPPED_FOLDERS = ("global_step_", "model", "tensorboard", "wandb", ".")
"""Prefixes of the names of folders with weights or logs, which hold no episodes."""
MAX_DEPTH = 8


@dataclass(frozen=True)
class RunFolder:
    """A run's folder; `result` is the file of `practicum eval --out` that belongs to it."""

    name: str
    folder: Path
    result: Path | None = None

    @property
    def key(self) -> str:
        """A short name that is safe in a URL and is the same as long as the folder's path is."""
        return hashlib.sha256(os.fsencode(self.result or self.folder)).hexdigest()[:10]


def find_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """The runs at these paths, or all below a folder that is none itself; each with a distinct name."""
    runs: dict[Path, RunFolder] = {}
    for path in paths:
        runs_here = _runs_at(path)
        if not runs_here:
            raise UserError(
                f"There is no run in '{path}': a run's folder has metrics.jsonl, episodes or a result of `practicum "
                "eval --out`."
            )
        for run in runs_here:
            runs.setdefault((run.result or run.folder).resolve(), run)
    return _with_distinct_names(list(runs.values()))


def runs_below(top: Path) -> list[RunFolder]:
    """All runs below a folder, which may still be empty."""
    return _with_distinct_names(_walk(top))


def _runs_at(path: Path) -> list[RunFolder]:
    if path.is_dir():
        return _walk(path)
    if path.suffix == ".json" and path.is_file():
        return [RunFolder(path.stem, path.with_suffix(".run"), path)]
    if not path.exists():
        raise UserError(f"There is no run '{path}'; give the folder of a run, or a folder with runs below it.")
    return []


def _walk(top: Path) -> list[RunFolder]:
    runs, folders = [], [(top, 0)]
    while folders:
        folder, depth = folders.pop()
        run = _run_in(folder)
        if run is not None:
            runs.append(run)
        elif depth < MAX_DEPTH:
            folders += [(subfolder, depth + 1) for subfolder in _subfolders(folder)]
    paths = {run: run.folder.with_suffix("") if run.result else run.folder for run in runs}
    return sorted(runs, key=lambda run: [stage_key(part) for part in paths[run].parts])


def _run_in(folder: Path) -> RunFolder | None:
    result = folder.with_suffix(".json") if folder.suffix == ".run" else None
    if result is not None and is_regular(result):
        return RunFolder(folder.stem, folder, result)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in RUN_FILES or (EPISODE_MARK in entry.name and entry.name.endswith(".jsonl")):
                    return RunFolder(folder.name or str(folder), folder)
    except OSError:
        return None
    return None


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith(SKIPPED_FOLDERS)]


def _with_distinct_names(runs: list[RunFolder]) -> list[RunFolder]:
    """Name each run by the fewest last parts of its path that distinguish all runs."""
    paths = [(run.result or run.folder).absolute() for run in runs]
    short = [path.with_suffix("") if path.suffix in (".json", ".run") else path for path in paths]
    name_counts = Counter(short)
    paths = [path if name_counts[plain] > 1 else plain for path, plain in zip(paths, short, strict=True)]
    named = list(runs)
    for length in range(1, 1 + max((len(path.parts) for path in paths), default=0)):
        names = ["/".join(path.parts[-length:]) for path in paths]
        named = [replace(run, name=name) for run, name in zip(runs, names, strict=True)]
        if len(set(names)) == len(names):
            break
    return named
