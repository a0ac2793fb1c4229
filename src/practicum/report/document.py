"""`practicum report`: runs in one self-contained HTML file."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from practicum import __version__
from practicum.data.store import write_atomic
from practicum.errors import UserError
from practicum.report.cohorts import comparisons
from practicum.report.highlights import highlights
from practicum.report.index import FIELDS, EpisodeRow
from practicum.report.page import data_block, packed_block, self_contained
from practicum.report.run_view import RunView
from practicum.report.runs import Run, find_runs
from practicum.report.tokens import Tokenizers
from practicum.utils.escape import encode
from practicum.utils.progress import Progress

ROOM = 12 << 20
"""Bytes that whole episodes may take in the file, unless another number is asked for."""

MISSES = 20
"""Episodes that did not fit before no more are tried."""

Told = Callable[[str, int], None]


def document(
    runs: Sequence[Run], room: int = ROOM, tell: Told = lambda text, waiting: None
) -> tuple[bytes, list[RunView]]:
    """The file, and what was read for it. All episodes are listed; as many as fit into `room` bytes can be opened."""
    readings = []
    for run in runs:
        reading = RunView(run)
        reading.refresh()
        for waiting in reading.index.read_all():
            tell(run.name, waiting)
        readings.append(reading)
    blocks = [data_block("data", _data(readings))]
    blocks += embedded(readings, room)
    names = ", ".join(reading.name for reading in readings[:3]) + (" …" if len(readings) > 3 else "")
    return self_contained(f"Practicum: {names}", blocks), readings


def write_report(
    folders: Sequence[Path], out: Path, episode_bytes: int = ROOM, progress: bool = True
) -> tuple[list[RunView], int]:
    """Write the report on the runs in these folders to `out`; the runs as they were read, and the size in bytes.

    Where nothing could be read there is no file, and an error.
    """
    runs = find_runs(folders)
    with Progress("read", 0, "episodes", shown=progress) as line:

        def tell(name: str, waiting: int) -> None:
            line.total = line.done + waiting + 1
            line.advance(1)

        page, views = document(runs, episode_bytes, tell)
    if not any(view.index.rows for view in views) and all(view.fault is not None for view in views):
        raise UserError(f"There is nothing to report, so {out} was not written: {views[0].fault}")
    write_atomic(out, page)
    return views, len(page)


def _data(readings: Sequence[RunView]) -> dict[str, Any]:
    cohorts = [cohort for reading in readings for cohort in reading.cohorts()]
    return {
        "mode": "report",
        "version": __version__,
        "fields": FIELDS,
        "runs": [reading.record() for reading in readings],
        "rows": {reading.run.key: [row.record() for row in reading.index.rows] for reading in readings},
        "comparisons": comparisons(cohorts),
    }


def embedded(readings: Sequence[RunView], room: int) -> Iterator[bytes]:
    """Episodes as compressed blocks, those first that a reader opens first, until the room is used up."""
    tokenizers, missed = Tokenizers(), 0
    for reading, row in by_interest(readings):
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(encode(reading.episode(row, tokenizers))) + packer.flush()
        block = packed_block(f"e-{reading.run.key}-{row.number}", packed)
        if len(block) > room:  # a large one; smaller ones may fit still
            missed += 1
            if missed > MISSES:
                return
            continue
        room -= len(block)
        yield block


def by_interest(readings: Sequence[RunView]) -> Iterator[tuple[RunView, EpisodeRow]]:
    """Samples of every run, then their groups, then the same tasks in the other runs, then all others in turn."""
    given: set[tuple[str, int]] = set()

    def fresh(reading: RunView, row: EpisodeRow) -> bool:
        place = (reading.run.key, row.number)
        new = place not in given
        given.add(place)
        return new

    groups: set[tuple[str, str, str]] = set()
    tasks: set[str] = set()
    for reading in readings:
        rows = reading.index.rows
        for number in dict.fromkeys(n for numbers in highlights(rows).values() for n in numbers):
            groups.add((reading.run.key, rows[number].part, rows[number].group))
            tasks.add(rows[number].sitting.cluster)
            if fresh(reading, rows[number]):
                yield reading, rows[number]
    for kin in (True, False):
        for reading in readings:
            for row in reading.index.rows:
                near = (reading.run.key, row.part, row.group) in groups if kin else row.sitting.cluster in tasks
                if near and fresh(reading, row):
                    yield reading, row
    longest = max((len(reading.index.rows) for reading in readings), default=0)
    for place in range(longest):
        for reading in readings:
            if place < len(reading.index.rows) and fresh(reading, reading.index.rows[place]):
                yield reading, reading.index.rows[place]
