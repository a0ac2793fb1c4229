"""One learning curve, kept short: a run of any length costs the same to hold, to send and to draw."""

from __future__ import annotations

from typing import Any

LIMIT = 600
"""Points a curve has at most, before two neighbours become one."""


class Series:
    """Points (step, mean, low, high); each is the mean over `stride` steps, and `stride` doubles as the curve grows.

    Adding a point costs the same however long the run is (counted over many). The page goes on adding by the same rule,
    so what it holds after a thousand messages is what it would have been sent afresh.
    """

    def __init__(self) -> None:
        self.stride = 1
        self.points: list[tuple[float, float, float, float]] = []
        self.pending: list[float] = [0, 0, 0, 0, 0]  # how many, last step, sums of value, low and high

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
        if len(self.points) >= LIMIT:
            self._halve()

    def _halve(self) -> None:
        self.points = [
            (b[0], (a[1] + b[1]) / 2, (a[2] + b[2]) / 2, (a[3] + b[3]) / 2)
            for a, b in zip(self.points[::2], self.points[1::2], strict=False)
        ]
        self.stride *= 2

    def record(self) -> dict[str, Any]:
        return {"stride": self.stride, "points": [list(point) for point in self.points], "pending": self.pending}
