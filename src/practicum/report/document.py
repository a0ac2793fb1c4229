"""`practicum report`: runs in one self-contained HTML file."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from practicum import __version__
from practicum.data.run_folder import write_atomic
from practicum.errors import UserError
from practicum.report.comparisons import compare_parts
from practicum.report.drawings import Drawings, first_and_last
from practicum.report.highlights import highlights
from practicum.report.index import FIELDS, EpisodeRow
from practicum.report.page import data_block, packed_block, self_contained
from practicum.report.run_view import RunView
from practicum.report.runs import RunFolder, find_runs
from practicum.report.tokens import Tokenizers
from practicum.utils.escape import encode
from practicum.utils.terminal import Progress

DEFAULT_EPISODE_BYTES = 12 << 20
"""Bytes of the file for complete episodes, by default."""

MAX_SKIPPED_EPISODES = 20
"""Episodes that do not fit until no more are tried."""

OnRead = Callable[[str, int], None]


def document(
    runs: Sequence[RunFolder],
    episode_bytes: int = DEFAULT_EPISODE_BYTES,
    on_read: OnRead = lambda text, waiting: None,
    drawings: Drawings | None = None,
) -> tuple[bytes, list[RunView]]:
    """The HTML file, and the runs that were read for it.

    All episodes are listed; as many as fit into `episode_bytes` can be opened. `drawings` knows the environments that
    draw them.
    """
    views = []
    for run in runs:
        view = RunView(run, drawings)
        view.refresh()
        for waiting in view.index.read_all():
            on_read(run.name, waiting)
        views.append(view)
    blocks = [data_block("data", _data(views))]
    blocks += [packed_block(f"s-{view.run.key}", view.index.words.packed()) for view in views if view.index.rows]
    blocks += episode_blocks(views, episode_bytes)
    names = ", ".join(view.name for view in views[:3]) + (" …" if len(views) > 3 else "")
    return self_contained(f"Practicum: {names}", blocks), views


def write_report(
    folders: Sequence[Path],
    out: Path,
    episode_bytes: int = DEFAULT_EPISODE_BYTES,
    progress: bool = True,
    environments: Sequence[str] = (),
) -> tuple[list[RunView], int]:
    """Write the report on the runs in these folders to `out`; returns the runs and the size of the file in bytes.

    If nothing can be read, no file is written and an error is raised. `environments` are further ones that draw their
    episodes, besides those of the package.
    """
    drawings, runs = Drawings(environments), find_runs(folders)
    with Progress("read", 0, "episodes", shown=progress) as line:

        def on_read(name: str, waiting: int) -> None:
            line.total = line.done + waiting + 1
            line.advance(1)

        page, views = document(runs, episode_bytes, on_read, drawings)
    if not any(view.index.rows for view in views) and all(view.error is not None for view in views):
        raise UserError(f"There is nothing to report, so {out} was not written: {views[0].error}")
    write_atomic(out, page)
    return views, len(page)


def _data(views: Sequence[RunView]) -> dict[str, Any]:
    parts = [part for view in views for part in view.parts()]
    return {
        "mode": "report",
        "version": __version__,
        "fields": FIELDS,
        "runs": [view.record() for view in views],
        "rows": {view.run.key: [row.record() for row in view.index.rows] for view in views},
        "comparisons": compare_parts(parts),
    }


def episode_blocks(views: Sequence[RunView], episode_bytes: int) -> Iterator[bytes]:
    """Episodes as compressed blocks, the most interesting first, until `episode_bytes` are used up."""
    tokenizers, missed = Tokenizers(), 0
    for view, row in by_interest(views):
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(encode(view.episode(row, tokenizers))) + packer.flush()
        block = packed_block(f"e-{view.run.key}-{row.number}", packed)
        if len(block) > episode_bytes:  # smaller ones may still fit
            missed += 1
            if missed > MAX_SKIPPED_EPISODES:
                return
            continue
        episode_bytes -= len(block)
        yield block


def by_interest(views: Sequence[RunView]) -> Iterator[tuple[RunView, EpisodeRow]]:
    """The highlights of every run, then their groups, then the same tasks in other runs, then all others in turn."""
    seen: set[tuple[str, int]] = set()

    def is_new(view: RunView, row: EpisodeRow) -> bool:
        key = (view.run.key, row.number)
        new = key not in seen
        seen.add(key)
        return new

    groups: set[tuple[str, str, str]] = set()
    tasks: set[str] = set()
    for view in views:
        rows = view.index.rows
        chosen = [*highlights(rows).values(), first_and_last(rows, view.drawings)]
        for row_index in dict.fromkeys(n for numbers in chosen for n in numbers):
            groups.add((view.run.key, rows[row_index].part, rows[row_index].group))
            tasks.add(rows[row_index].result.cluster)
            if is_new(view, rows[row_index]):
                yield view, rows[row_index]
    for same_group in (True, False):
        for view in views:
            for row in view.index.rows:
                related = (view.run.key, row.part, row.group) in groups if same_group else row.result.cluster in tasks
                if related and is_new(view, row):
                    yield view, row
    longest = max((len(view.index.rows) for view in views), default=0)
    for index in range(longest):
        for view in views:
            if index < len(view.index.rows) and is_new(view, view.index.rows[index]):
                yield view, view.index.rows[index]
