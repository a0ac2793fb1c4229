"""What a run is on disk: a folder with metrics, episodes or a result, found below the folders that were given."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from practicum.data.store import EPISODE_MARK
from practicum.errors import UserError

METRICS, TIMING, HEALTH, CONFIG = "metrics.jsonl", "timing.jsonl", "health.jsonl", "config.yaml"
MARKS = frozenset({METRICS, CONFIG, "plan.json", "summary.json", "collect.json", "panel.json"})
"""Files that say: this folder, with all below it, is one run."""
WITHOUT_EPISODES = ("global_step_", "model", "tensorboard", "wandb", ".")
"""Beginnings of folder names that hold weights or logs: nothing to look for in there."""
DEEPEST = 8


@dataclass(frozen=True)
class Run:
    """A run's folder; `result` is the file of `practicum eval --out` that belongs to it."""

    name: str
    folder: Path
    result: Path | None = None

    @property
    def key(self) -> str:
        """A short name that is safe in an address and stays the same as long as the folder does."""
        return hashlib.sha256(os.fsencode(self.result or self.folder)).hexdigest()[:10]


def find_runs(places: Sequence[Path]) -> list[Run]:
    """The runs that were named, or all below a folder that is none itself; each with a name of its own."""
    found: dict[Path, Run] = {}
    for place in places:
        here = _runs_at(place)
        if not here:
            raise UserError(
                f"There is no run in '{place}': a run's folder has metrics.jsonl, episodes or a result of `practicum "
                "eval --out`."
            )
        for run in here:
            found.setdefault((run.result or run.folder).resolve(), run)
    return _named(list(found.values()))


def runs_below(top: Path) -> list[Run]:
    """All runs below a folder, which may be empty still."""
    return _named(_walk(top))


def _runs_at(place: Path) -> list[Run]:
    if place.is_dir():
        return _walk(place)
    if place.suffix == ".json" and place.is_file():
        return [Run(place.stem, place.with_suffix(".run"), place)]
    if not place.exists():
        raise UserError(f"There is no run '{place}'; give the folder of a run, or a folder with runs below it.")
    return []


def _walk(top: Path) -> list[Run]:
    runs, waiting = [], [(top, 0)]
    while waiting:
        folder, depth = waiting.pop()
        run = _run_in(folder)
        if run is not None:
            runs.append(run)
        elif depth < DEEPEST:
            waiting += [(below, depth + 1) for below in _below(folder)]
    return sorted(runs, key=lambda run: str(run.folder))


def _run_in(folder: Path) -> Run | None:
    result = folder.with_suffix(".json") if folder.suffix == ".run" else None
    if result is not None and result.is_file():
        return Run(folder.stem, folder, result)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in MARKS or (EPISODE_MARK in entry.name and entry.name.endswith(".jsonl")):
                    return Run(folder.name or str(folder), folder)
    except OSError:
        return None
    return None


def _below(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith(WITHOUT_EPISODES)]


def _named(runs: list[Run]) -> list[Run]:
    """As few of the last parts of a path as tell all runs apart."""
    paths = [(run.result or run.folder).absolute() for run in runs]
    short = [path.with_suffix("") if path.suffix in (".json", ".run") else path for path in paths]
    taken = Counter(short)
    paths = [path if taken[plain] > 1 else plain for path, plain in zip(paths, short, strict=True)]
    named = list(runs)
    for length in range(1, 1 + max((len(path.parts) for path in paths), default=0)):
        names = ["/".join(path.parts[-length:]) for path in paths]
        named = [replace(run, name=name) for run, name in zip(runs, names, strict=True)]
        if len(set(names)) == len(names):
            break
    return named
