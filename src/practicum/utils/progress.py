"""A progress line for every long job: what, how far, how fast, how long yet. Never silent for long."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO


def duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


class Progress:
    """A line that redraws itself on a terminal and is printed every few seconds elsewhere.

    A heartbeat thread prints even while the work itself says nothing.
    """

    def __init__(
        self, label: str, total: int, unit: str = "", stream: TextIO | None = None, every: float = 4.0
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.every = 0.2 if self.live else every
        self.done = 0
        self.note = ""
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Progress:
        self._show()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._show()
        if self.live:
            self.stream.write("\n")
        self.stream.flush()

    def advance(self, count: int = 1, note: str | None = None) -> None:
        self.done += count
        if note is not None:
            self.note = note

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def _beat(self) -> None:
        while not self._stop.wait(self.every):
            self._show()

    def _show(self) -> None:
        seconds = self.seconds
        text = f"{self.label:<22} {self.done}/{self.total}{' ' + self.unit if self.unit else ''}  {duration(seconds)}"
        if 0 < self.done < self.total and seconds > 0:
            rate = self.done / seconds
            text += f"  {rate:.3g}/s  {duration((self.total - self.done) / rate)} left"
        if self.note:
            text += f"  {self.note}"
        self.stream.write(f"\r\x1b[2K{text}" if self.live else f"{text}\n")
        self.stream.flush()
