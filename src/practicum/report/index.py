"""The episodes of a run, one row each, read as files appear. A file that cannot be read is listed with its error."""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from practicum.data import store
from practicum.data.run_folder import GROUPS, TOP, advantages_path
from practicum.data.store import EPISODE_MARK
from practicum.errors import UserError
from practicum.evaluation.result import AttemptResult, attempt_result
from practicum.report.advantages import EpisodeAdvantages, read_advantages
from practicum.report.row_text import NO_TEXT, TEXT_FIELDS, RowText, row_text
from practicum.report.runs import MAX_DEPTH, METRICS, SKIPPED_FOLDERS
from practicum.report.search_index import SearchIndex, words_of
from practicum.report.stage_order import StageKey, natural_key, stage_key
from practicum.report.tool_latency import ToolSeconds, ToolTimes
from practicum.training.validation_results import VALIDATION
from practicum.trajectory import Trajectory
from practicum.utils.escape import is_number, json_number
from practicum.utils.terminal import escape_invisible

MAX_EPISODE_BYTES = 64 << 20
READ_ERRORS = (
    UserError, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError,
    MemoryError,
)  # fmt: skip
"""Exceptions that a damaged or hostile file may raise while it is read."""


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """An episode in the page's list. `part` is its folder within the run, without the training step."""

    number: int
    path: str
    part: str
    step: int | None
    environment: str
    split: str
    group: str
    result: AttemptResult
    logprob: float | None
    policy: str
    size: int
    advantage: float | None = None
    """Mean advantage of its tokens in training, where the run saved it."""
    text: RowText = NO_TEXT
    tool_seconds: ToolSeconds = field(default_factory=dict)
    """Seconds of each call, by tool, where the run kept them."""

    @property
    def selected(self) -> bool:
        """Whether it was saved for its high reward; such episodes represent no policy."""
        return self.part.split("/")[-1] == TOP

    @property
    def rated(self) -> bool:
        """Whether its part of the run represents one policy; groups and validations of several steps do not."""
        return not self.selected and not (self.step is not None and self.part.split("/")[-1] in (GROUPS, VALIDATION))

    @property
    def counted(self) -> bool:
        """Whether it enters statistics: scored, with a finite reward."""
        result = self.result
        return (
            result.outcome.scored
            and math.isfinite(result.reward)
            and all(map(math.isfinite, result.components.values()))
        )

    def record(self) -> list[Any]:
        """The values in the order of FIELDS."""
        result = self.result
        return [
            self.number,
            escape_invisible(result.task),
            result.attempt,
            escape_invisible(self.part),
            self.step,
            escape_invisible(self.environment),
            escape_invisible(self.split),
            escape_invisible(self.group),
            result.outcome.value,
            json_number(result.reward),
            result.turns,
            result.tokens,
            result.invalid_replies,
            None if self.logprob is None else json_number(round(self.logprob, 4)),
            {escape_invisible(name): json_number(value) for name, value in result.components.items()},
            result.cluster,
            None if self.advantage is None else json_number(self.advantage),
            *self.text.record(),
            {name: list(seconds) for name, seconds in self.tool_seconds.items()},
        ]


FIELDS = ("number", "task", "attempt", "part", "step", "environment", "split", "group", "outcome", "reward", "turns",
          "tokens", "invalid", "logprob", "parts", "hash", "credit", *TEXT_FIELDS, "seconds")  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file with an episode's name that cannot be read as one."""

    path: str
    reason: str

    def record(self) -> dict[str, str]:
        return {"path": escape_invisible(self.path), "reason": escape_invisible(self.reason)}


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The content of a folder at its last change. `metrics`: it has a metrics file."""

    changed: int
    episodes: frozenset[str]
    subfolders: tuple[Path, ...]
    metrics: bool


class EpisodeIndex:
    """Rows of all episodes below a run's folder. `scan` finds new files, `advance` reads them one by one.

    `generation` is incremented when files have been removed and the rows are numbered again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[EpisodeRow] = []
        self.words = SearchIndex()
        self.tool_times = ToolTimes(folder)
        self.unreadable: list[UnreadableFile] = []
        self.generation = 0
        self.pending: deque[str] = deque()
        self._listed: dict[Path, FolderListing] = {}

    def scan(self) -> None:
        """Find new files. A folder that has not changed is not listed again."""
        before, self._listed = self._listed, {}
        new_files: list[str] = []
        folders = [(self.folder, 0)]
        while folders:
            folder, depth = folders.pop()
            listing = list_folder(folder, before.get(folder))
            if listing is None:
                continue
            self._listed[folder] = listing
            old = before.get(folder)
            if old is not listing:
                names = listing.episodes - (old.episodes if old else frozenset())
                new_files += [os.path.relpath(folder / name, self.folder) for name in names]
            if depth < MAX_DEPTH:
                folders += [(subfolder, depth + 1) for subfolder in listing.subfolders]
        self.pending.extend(sorted(new_files, key=natural_key))
        if any(
            folder not in self._listed or old.episodes - self._listed[folder].episodes for folder, old in before.items()
        ):
            self._drop_removed()

    def metrics_files(self) -> list[Path]:
        """Every metrics file of the run: its own, or one per stage."""
        folders = [folder for folder, listing in self._listed.items() if listing.metrics]
        return [folder / METRICS for folder in sorted(folders, key=self._stage_key)]

    def _stage_key(self, folder: Path) -> StageKey:
        return stage_key(os.path.relpath(folder, self.folder))

    def advance(self) -> bool:
        """Read one more file; False when none is pending."""
        if not self.pending:
            return False
        name = self.pending.popleft()
        advantages = self._advantages(name)
        try:
            episode, size = read_episode(self.folder / name)
            row, words = make_row(episode, size, name, len(self.rows), advantages), words_of(episode)
            if row.text.tools:
                row = replace(row, tool_seconds=self.tool_times.times_of(name, (row.result.task, row.result.attempt)))
            self.rows.append(row)
            self.words.add(row.number, words)
        except READ_ERRORS as error:
            if (self.folder / name).exists():
                self.unreadable.append(UnreadableFile(name, error_text(error)))
        return True

    def _advantages(self, name: str) -> EpisodeAdvantages | None:
        """The advantages beside an episode; damaged ones are listed, and the episode is shown without them."""
        try:
            return read_advantages(self.folder / name)
        except READ_ERRORS as error:
            self.unreadable.append(UnreadableFile(str(advantages_path(Path(name))), error_text(error)))
            return None

    def read_all(self) -> Iterator[int]:
        """Read all files; yields the number of files that are still pending."""
        self.scan()
        while self.advance():
            yield len(self.pending)

    def path(self, row: EpisodeRow) -> Path:
        return self.folder / row.path

    def _drop_removed(self) -> None:
        """Remove rows whose files are gone, and number the rest again."""
        present = {
            os.path.relpath(folder / name, self.folder)
            for folder, listing in self._listed.items()
            for name in listing.episodes
        }
        rows = [row for row in self.rows if row.path in present]
        self.pending = deque(name for name in self.pending if name in present)
        present |= {str(advantages_path(Path(name))) for name in present}
        self.unreadable = [entry for entry in self.unreadable if entry.path in present]
        if len(rows) < len(self.rows):
            self.words.renumber({row.number: index for index, row in enumerate(rows)})
            self.rows = [replace(row, number=index) for index, row in enumerate(rows)]
            self.generation += 1


def list_folder(folder: Path, before: FolderListing | None) -> FolderListing | None:
    """The content of a folder, or `before` if it has not changed since; None where it cannot be read."""
    try:
        changed = folder.stat().st_mtime_ns
        if before is not None and before.changed == changed:
            return before
        names, subfolders, metrics = [], [], False
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(SKIPPED_FOLDERS):
                        subfolders.append(folder / entry.name)
                elif EPISODE_MARK in entry.name and entry.name.endswith(".jsonl") and entry.name[0] != ".":
                    names.append(entry.name)
                metrics = metrics or (entry.name == METRICS and entry.is_file(follow_symlinks=False))
        return FolderListing(changed, frozenset(names), tuple(sorted(subfolders)), metrics)
    except OSError:
        return None


def make_row(
    episode: Trajectory, size: int, name: str, number: int, advantages: EpisodeAdvantages | None = None
) -> EpisodeRow:
    """The row of one episode, whose file has this size and this name below the run's folder."""
    part, step = split_path(name)
    values = [value for turn in episode.turns for span in turn.spans for value in span.logprobs or ()]
    return EpisodeRow(
        number=number,
        path=name,
        part=part,
        step=step,
        environment=str(episode.task.environment),
        split=str(episode.task.split),
        group=str(episode.group),
        result=attempt_result(episode),
        logprob=math.fsum(values) / len(values) if values else None,
        policy=str(episode.provenance.get("policy") or episode.provenance.get("model") or ""),
        size=size,
        advantage=None if advantages is None else advantages.mean,
        text=row_text(episode),
    )


def read_episode(path: Path, *, follow_links: bool = False) -> tuple[Trajectory, int]:
    """An episode with the types of its fields checked, and the size of its file in bytes.

    Unlike an episode to train on it may hold NaN and infinities, which the page shows. A link is followed only where
    the user named it: one inside a run's folder may lead to a file that the folder's author cannot read.
    """
    if not follow_links and path.is_symlink():
        raise ValueError("it is a link, and links are not followed")
    size = path.stat().st_size
    episode = store.read_episode(path, max_bytes=MAX_EPISODE_BYTES)
    if not isinstance(episode.task.id, str) or type(episode.attempt) is not int:
        raise ValueError("its task or attempt is not what an episode has there")
    if not all(
        map(is_number, (episode.reward, *episode.components.values(), *(turn.reward for turn in episode.turns)))
    ):
        raise ValueError("a reward is not a number")
    for turn in episode.turns:
        if not isinstance(turn.reply, str) or any(not isinstance(m.content, str) for m in turn.messages):
            raise ValueError("a reply or message is not a text")
        for span in turn.spans:
            if not all(map(is_number, (*span.ids[:1], *span.ids[-1:], *(span.logprobs or ())[:1]))):
                raise ValueError("token ids or log-probs are not numbers")
    return episode, size


def split_path(name: str) -> tuple[str, int | None]:
    """The folder of a file within the run, and the training step that the folder names."""
    folders = list(Path(name).parts[:-1])
    match = re.fullmatch(r"step_(\d{1,9})", folders[-1]) if folders else None
    if match is not None:
        folders.pop()
    return "/".join(folders), int(match[1]) if match is not None else None


def error_text(error: BaseException) -> str:
    """The reason why a file cannot be read, in one line."""
    text = str(error).splitlines()[0] if str(error) else ""
    if isinstance(error, store.EpisodeFileError):
        return error.reason[:300]
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text (byte {error.start})"
    if isinstance(error, OSError):
        return error.strerror or "cannot be read"
    if isinstance(error, KeyError):
        return f"{text} is missing"
    return (text or type(error).__name__)[:300]
