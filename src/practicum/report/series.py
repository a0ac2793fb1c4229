"""One learning curve of bounded length: a run of any length costs the same memory, traffic and drawing."""

from __future__ import annotations

import math
from typing import Any

MAX_POINTS = 600
"""Points at which neighbours are merged in pairs."""


class Series:
    """Points (step, mean, low, high); each is the mean over `stride` steps, and `stride` doubles as the curve grows.

    Adding a point has constant amortised cost. The page adds points by the same rule, so after a thousand messages it
    holds the same curve as one that is loaded again. The interval of a mean over k steps is narrower by the root of k
    where the steps have different tasks (`independent`); validations repeat the same tasks, so theirs is the mean.
    """

    def __init__(self, independent: bool = True) -> None:
        self.independent = independent
        self.stride = 1
        self.points: list[tuple[float, float, float, float]] = []
        self.pending: list[float] = [0, 0, 0, 0, 0]  # count, last step, sum of values, of margins below and above

    def add(self, step: float, value: float, low: float | None = None, high: float | None = None) -> None:
        if self.stride == 1:
            self._append((step, value, value if low is None else low, value if high is None else high))
            return
        pending = self.pending
        pending[0] += 1
        pending[1] = step
        pending[2] += value
        pending[3] += self._summand(0.0 if low is None else value - low)
        pending[4] += self._summand(0.0 if high is None else high - value)
        if pending[0] < self.stride:
            return
        mean = pending[2] / pending[0]
        point = (step, mean, mean - self._margin(pending[3]), mean + self._margin(pending[4]))
        self.pending = [0, 0, 0, 0, 0]
        self._append(point)

    def _append(self, point: tuple[float, float, float, float]) -> None:
        self.points.append(point)
        if len(self.points) >= MAX_POINTS:
            self._halve()

    def _halve(self) -> None:
        self.points = [
            (b[0], mean, mean - self._both(a[1] - a[2], b[1] - b[2]), mean + self._both(a[3] - a[1], b[3] - b[1]))
            for a, b in zip(self.points[::2], self.points[1::2], strict=False)
            for mean in [(a[1] + b[1]) / 2]
        ]
        self.stride *= 2

    def _summand(self, margin: float) -> float:
        return margin * margin if self.independent else margin

    def _margin(self, total: float) -> float:
        """The margin of the mean over the pending steps."""
        return (math.sqrt(total) if self.independent else total) / self.pending[0]

    def _both(self, first: float, second: float) -> float:
        """The margin of the mean of two points."""
        return (math.hypot(first, second) if self.independent else first + second) / 2

    def record(self) -> dict[str, Any]:
        return {
            "stride": self.stride,
            "independent": self.independent,
            "points": [list(point) for point in self.points],
            "pending": self.pending,
        }


class Axis:
    """Another quantity to draw curves over: its total up to each step (tokens trained on, seconds)."""

    def __init__(self) -> None:
        self.total = 0.0
        self.points: list[tuple[float, float]] = []

    def add(self, step: float, amount: float) -> None:
        self.total += max(0.0, amount)
        self.points.append((step, self.total))
        if len(self.points) >= MAX_POINTS:
            self.points = self.points[1::2]  # totals need no averaging: a line between two of them is enough
