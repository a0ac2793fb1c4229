"""One learning curve of bounded length: a run of any length costs the same memory, traffic and drawing."""

from __future__ import annotations

from typing import Any

MAX_POINTS = 600
"""Points at which neighbours are merged in pairs."""


class Series:
    """Points (step, mean, low, high); each is the mean over `stride` steps, and `stride` doubles as the curve grows.

    Adding a point has constant amortised cost. The page adds points by the same rule, so after a thousand messages it
    holds the same curve as one that is loaded again.
    """

    def __init__(self) -> None:
        self.stride = 1
        self.points: list[tuple[float, float, float, float]] = []
        self.pending: list[float] = [0, 0, 0, 0, 0]  # count, last step, sums of value, low and high

    def add(self, step: float, value: float, low: float | None = None, high: float | None = None) -> None:
        pending = self.pending
        pending[0] += 1
        pending[1] = step
        pending[2] += value
        pending[3] += value if low is None else low
        pending[4] += value if high is None else high
        if pending[0] < self.stride:
            return
        self.points.append((pending[1], *(total / pending[0] for total in pending[2:])))  # type: ignore[arg-type]
        self.pending = [0, 0, 0, 0, 0]
        if len(self.points) >= MAX_POINTS:
            self._halve()

    def _halve(self) -> None:
        self.points = [
            (b[0], (a[1] + b[1]) / 2, (a[2] + b[2]) / 2, (a[3] + b[3]) / 2)
            for a, b in zip(self.points[::2], self.points[1::2], strict=False)
        ]
        self.stride *= 2

    def record(self) -> dict[str, Any]:
        return {"stride": self.stride, "points": [list(point) for point in self.points], "pending": self.pending}
