"""A progress line for long jobs: label, done of total, time, rate, time left."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO


def duration(seconds: float) -> str:
    """Minutes and seconds: "3:07"."""
    rounded = max(0, round(seconds))
    return f"{rounded // 60}:{rounded % 60:02d}"


class Progress:
    """A context manager that redraws its line on a terminal and prints one every few seconds elsewhere.

    A thread prints the line also while the work makes no progress. With `shown` false nothing is printed.
    """

    def __init__(
        self,
        label: str,
        total: int,
        unit: str = "",
        stream: TextIO | None = None,
        every: float = 4.0,
        shown: bool = True,
    ) -> None:
        self.label, self.total, self.unit, self.shown = label, total, unit, shown
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty()
        self.every = 0.2 if self.live else every
        self.done = 0
        self.note = ""
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Progress:
        if self.shown:
            self._show()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.shown:
            return
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
        return time.monotonic() - self._started

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
