"""The episodes of a run, one short row each, read as files come in. What cannot be read is listed with its reason."""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from practicum.data import store
from practicum.data.store import EPISODE_MARK
from practicum.errors import UserError
from practicum.evaluation.result import AttemptResult, attempt_result
from practicum.report.advantages import EpisodeAdvantages, read_advantages
from practicum.report.runs import DEEPEST, METRICS, WITHOUT_EPISODES
from practicum.training.episode_saver import GROUPS, TOP, advantages_path
from practicum.trajectory import Trajectory
from practicum.utils.escape import is_number, number, shown

LARGEST = 64 << 20
FAULTS = (
    UserError, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError,
    MemoryError,
)  # fmt: skip
"""What a damaged or hostile file may raise while it is read."""


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """What the page's list knows of an episode. `part` is the folder within the run, without training steps."""

    number: int
    path: str
    part: str
    step: int | None
    environment: str
    split: str
    group: str
    sitting: AttemptResult
    logprob: float | None
    policy: str
    size: int
    credit: float | None = None
    """Mean advantage that its tokens were trained with, where the run kept it."""

    @property
    def selected(self) -> bool:
        """Whether it was kept for what it paid: it stands for nothing but itself."""
        return self.part.split("/")[-1] == TOP

    @property
    def rated(self) -> bool:
        """Whether its part of the run stands for one policy. Groups of several training steps are of several."""
        return not self.selected and not (self.step is not None and self.part.split("/")[-1] == GROUPS)

    @property
    def counted(self) -> bool:
        """Whether statistics may use it: scored, with a finite reward."""
        sitting = self.sitting
        return (
            sitting.outcome.scored
            and math.isfinite(sitting.reward)
            and all(map(math.isfinite, sitting.components.values()))
        )

    def record(self) -> list[Any]:
        """In the order of FIELDS."""
        sitting = self.sitting
        return [
            self.number, shown(sitting.task), sitting.attempt, shown(self.part), self.step, shown(self.environment),
            shown(self.split), shown(self.group), sitting.outcome.value, number(sitting.reward), sitting.turns,
            sitting.tokens, sitting.invalid_replies, None if self.logprob is None else number(round(self.logprob, 4)),
            {shown(name): number(value) for name, value in sitting.components.items()}, sitting.cluster,
            None if self.credit is None else number(self.credit),
        ]  # fmt: skip


FIELDS = ("number", "task", "attempt", "part", "step", "environment", "split", "group", "outcome", "reward", "turns",
          "tokens", "invalid", "logprob", "parts", "hash", "credit")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that should be an episode and is none."""

    path: str
    reason: str

    def record(self) -> dict[str, str]:
        return {"path": shown(self.path), "reason": shown(self.reason)}


@dataclass(frozen=True, slots=True)
class Listing:
    """What a folder held when it last changed. `metrics` says whether a metrics file was there."""

    changed: int
    episodes: frozenset[str]
    below: tuple[Path, ...]
    metrics: bool


class Index:
    """Rows of all episodes below a run's folder. `scan` finds new files, `advance` reads them one by one.

    `generation` goes up when files have gone and the rows were numbered anew.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[EpisodeRow] = []
        self.unreadable: list[Unreadable] = []
        self.generation = 0
        self.waiting: deque[str] = deque()
        self._listed: dict[Path, Listing] = {}

    def scan(self) -> None:
        """Look for new files. A folder that has not changed is not listed again."""
        before, self._listed = self._listed, {}
        fresh: list[str] = []
        waiting = [(self.folder, 0)]
        while waiting:
            folder, depth = waiting.pop()
            listing = listed(folder, before.get(folder))
            if listing is None:
                continue
            self._listed[folder] = listing
            old = before.get(folder)
            if old is not listing:
                names = listing.episodes - (old.episodes if old else frozenset())
                fresh += [os.path.relpath(folder / name, self.folder) for name in names]
            if depth < DEEPEST:
                waiting += [(below, depth + 1) for below in listing.below]
        self.waiting.extend(sorted(fresh, key=_natural))
        if any(
            place not in self._listed or old.episodes - self._listed[place].episodes for place, old in before.items()
        ):
            self._forget()

    def metrics_files(self) -> list[Path]:
        """Every metrics file that was seen: the run's own, or one a stage."""
        return sorted(folder / METRICS for folder, listing in self._listed.items() if listing.metrics)

    def advance(self) -> bool:
        """Read one more file; False when none is waiting."""
        if not self.waiting:
            return False
        name = self.waiting.popleft()
        credit = self._credit(name)
        try:
            self.rows.append(read_row(self.folder / name, name, len(self.rows), credit))
        except FAULTS as error:
            if (self.folder / name).exists():
                self.unreadable.append(Unreadable(name, reason(error)))
        return True

    def _credit(self, name: str) -> EpisodeAdvantages | None:
        """Advantages beside an episode; damaged ones are listed, and the episode is shown without them."""
        try:
            return read_advantages(self.folder / name)
        except FAULTS as error:
            self.unreadable.append(Unreadable(str(advantages_path(Path(name))), reason(error)))
            return None

    def read_all(self) -> Iterator[int]:
        """Everything there is, with the number of files still waiting."""
        self.scan()
        while self.advance():
            yield len(self.waiting)

    def path(self, row: EpisodeRow) -> Path:
        return self.folder / row.path

    def _forget(self) -> None:
        """Drop what is no longer there, and number the rest anew."""
        here = {
            os.path.relpath(folder / name, self.folder)
            for folder, listing in self._listed.items()
            for name in listing.episodes
        }
        kept = [row for row in self.rows if row.path in here]
        self.waiting = deque(name for name in self.waiting if name in here)
        here |= {str(advantages_path(Path(name))) for name in here}
        self.unreadable = [entry for entry in self.unreadable if entry.path in here]
        if len(kept) < len(self.rows):
            self.rows = [replace(row, number=place) for place, row in enumerate(kept)]
            self.generation += 1


def listed(folder: Path, before: Listing | None) -> Listing | None:
    """What a folder holds, or what it held if it has not changed since; None where it cannot be read."""
    try:
        changed = folder.stat().st_mtime_ns
        if before is not None and before.changed == changed:
            return before
        names, below, metrics = [], [], False
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(WITHOUT_EPISODES):
                        below.append(folder / entry.name)
                elif EPISODE_MARK in entry.name and entry.name.endswith(".jsonl") and entry.name[0] != ".":
                    names.append(entry.name)
                metrics = metrics or entry.name == METRICS
        return Listing(changed, frozenset(names), tuple(sorted(below)), metrics)
    except OSError:
        return None


def read_row(path: Path, name: str, place: int, credit: EpisodeAdvantages | None = None) -> EpisodeRow:
    """The row of one file; raises one of FAULTS where it is no whole episode."""
    episode, size = read_episode(path)
    part, step = part_of(name)
    values = [value for turn in episode.turns for span in turn.spans for value in span.logprobs or ()]
    return EpisodeRow(
        number=place,
        path=name,
        part=part,
        step=step,
        environment=str(episode.task.environment),
        split=str(episode.task.split),
        group=str(episode.group),
        sitting=attempt_result(episode),
        logprob=math.fsum(values) / len(values) if values else None,
        policy=str(episode.provenance.get("policy") or episode.provenance.get("model") or ""),
        size=size,
        credit=None if credit is None else credit.mean,
    )


def read_episode(path: Path) -> tuple[Trajectory, int]:
    """An episode whose figures are figures and whose texts are texts, and the size of its file.

    Unlike an episode to train on it may hold NaN and infinities: the page shows them as what they are.
    """
    size = path.stat().st_size
    episode = store.read_episode(path, max_bytes=LARGEST)
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


def part_of(name: str) -> tuple[str, int | None]:
    """Where in the run a file lies, and the training step that its folder names."""
    folders = list(Path(name).parts[:-1])
    found = re.fullmatch(r"step_(\d{1,9})", folders[-1]) if folders else None
    if found is not None:
        folders.pop()
    return "/".join(folders), int(found[1]) if found is not None else None


def reason(error: BaseException) -> str:
    """Why a file cannot be read, in one line."""
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


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Numbers in names in the order of numbers: attempt 10 after attempt 9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d{1,18})", name)]
