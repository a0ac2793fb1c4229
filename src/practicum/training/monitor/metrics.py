"""Metrics on disk: one JSON object per step in `metrics.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from practicum.data.jsonl import parse_object, read_lines
from practicum.data.store import write_atomic
from practicum.errors import UserError


class MetricsFile:
    """Appends one line per step, written at once and flushed.

    A new file replaces an old one; with `keep_to`, the lines of the old one up to that step are kept as they are (a
    line that a crash cut short is dropped).
    """

    def __init__(self, path: Path, keep_to: int | None = None) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if keep_to is not None and path.exists():
                write_atomic(path, b"".join(_lines_up_to(path, keep_to)))
            self._file = path.open("w" if keep_to is None else "a", encoding="utf-8")
        except OSError as error:
            raise UserError(f"Cannot write '{path}': {error.strerror}; choose another --out.") from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the metrics of a step; raises FloatingPointError if one is not finite."""
        not_finite = [name for name, value in values.items() if not math.isfinite(value)]
        if not_finite:
            raise FloatingPointError(f"step {step}: {', '.join(not_finite)} is not a finite number")
        try:
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
        except OSError as error:
            raise UserError(f"Cannot write '{self.path}': {error.strerror}; free some space.") from error

    def close(self) -> None:
        self._file.close()


def _lines_up_to(path: Path, step: int) -> Iterator[bytes]:
    for line in read_lines(path):
        try:
            line_step = parse_object(line)["step"]
        except (ValueError, KeyError, TypeError):
            continue
        if line.endswith(b"\n") and line_step <= step:
            yield line


def summary_stats(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return mean, std, min and max of a list, as `name/stat`; no metrics of an empty one."""
    if not values:
        return {}
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))
    return {f"{name}/mean": mean, f"{name}/std": deviation, f"{name}/min": min(values), f"{name}/max": max(values)}
