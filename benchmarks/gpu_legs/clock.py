"""The time that a benchmark may take."""

from __future__ import annotations

import time


class Clock:
    """Seconds since the start, and how many are left; times are printed with every line."""

    def __init__(self, minutes: float) -> None:
        self.started, self.limit = time.monotonic(), 60 * minutes

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 when the time is over."""
        return self.limit - self.seconds

    @property
    def over(self) -> bool:
        return self.left < 0

    def say(self, text: str) -> None:
        print(f"[{self.seconds:5.0f} s] {text}", flush=True)
