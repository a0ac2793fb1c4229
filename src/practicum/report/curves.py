"""The curves of one metrics file and the run's health events, read as the files grow.

Events are the run's own (`health.jsonl`). For a run without that file they are computed again from its metrics; the
record says which of the two it is.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scipy import special

from practicum.data.jsonl import parse_object
from practicum.evaluation.stats.intervals import LEVEL, jeffreys
from practicum.report.run_config import health_settings
from practicum.report.runs import CONFIG, HEALTH, TIMING
from practicum.report.series import Axis, Series
from practicum.training.monitor.health import HealthMonitor, sign_metrics
from practicum.utils.escape import is_number
from practicum.utils.regular_files import is_regular, open_regular
from practicum.utils.terminal import escape_invisible

MAX_CURVES = 400
MAX_EVENTS = 500
MAX_LINE_BYTES = 4 << 20
MAX_FILE_BYTES = 4 << 30
"""Bytes of a metrics or health file; a larger one is not read."""

STEP_PARTS = ("timing/rollout", "timing/credit", "timing/update")
"""Times of a step's parts in the files of runs that have no time of the whole step."""


class FileTail:
    """The new complete lines of a growing file. A file that was replaced or truncated is read again from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.identity: tuple[int, int] | None = None
        self.head = b""

    def changed(self) -> bool:
        """Whether the file no longer begins with what was read."""
        try:
            with open_regular(self.path) as file:
                state = os.fstat(file.fileno())
                head = file.read(len(self.head))
        except OSError:
            return self.identity is not None
        same_file = self.identity in (None, (state.st_dev, state.st_ino))
        return not same_file or state.st_size < self.offset or head != self.head

    def lines(self) -> Iterator[bytes]:
        try:
            with open_regular(self.path) as file:
                state = os.fstat(file.fileno())
                if state.st_size > MAX_FILE_BYTES:
                    return
                self.identity = (state.st_dev, state.st_ino)
                if not self.head:
                    self.head = file.read(64)
                file.seek(self.offset)
                while line := file.readline(MAX_LINE_BYTES):
                    if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                        self.head = self.head if self.offset else b""
                        return  # still being written
                    self.offset += len(line)
                    yield line
        except OSError:
            return


class Curves:
    """The curves of a `metrics.jsonl`. `advance` reads and returns new steps; `record` is everything so far."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.reset()

    def reset(self) -> None:
        self.tail, self.timing = FileTail(self.path), FileTail(self.path.with_name(TIMING))
        self.health_log = FileTail(self.path.with_name(HEALTH))
        self.has_health_log = is_regular(self.health_log.path)
        settings = health_settings(self.path.with_name(CONFIG))
        self.health, self.memory_health = HealthMonitor(settings), HealthMonitor(settings)
        self.series: dict[str, Series] = {}
        self.axes = {"tokens": Axis(), "seconds": Axis()}
        self.events: list[dict[str, Any]] = []
        self.num_events = 0  # including those that are no longer held; a page tells by it which events it has
        self.step, self.rows, self.unreadable, self.unreadable_events = 0.0, 0, 0, 0

    def advance(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether everything was read again from the start, and for every new step its points and events."""
        log_appeared = not self.has_health_log and is_regular(self.health_log.path)
        restarted = self.tail.changed() or self.health_log.changed() or log_appeared
        if restarted:
            self.reset()
        memory_events = list(self._memory_events())
        new_steps = [self._add_row(step, values) for step, values in self._rows(self.tail)]
        for step, events in self._logged_events() if self.has_health_log else memory_events:
            self._add_events(events)
            new_steps.append({"step": step, "points": {}, "events": events, "noted": self.num_events})
        return restarted, new_steps

    def _logged_events(self) -> Iterator[tuple[float, list[dict[str, Any]]]]:
        """The new events of the run's own health log."""
        for line in self.health_log.lines():
            try:
                row = parse_object(line)
                event = event_from_row(row)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                self.unreadable_events += 1
                continue
            yield event["step"], [event]

    def _memory_events(self) -> Iterator[tuple[float, list[dict[str, Any]]]]:
        """Read the times of the new steps, and what they say about the memory."""
        for step, values in self._rows(self.timing):
            seconds = values.get("timing/step", math.fsum(values.get(name, 0.0) for name in STEP_PARTS))
            if seconds > 0:
                self.axes["seconds"].add(step, seconds)
            events = [
                _event(step, f) for f in self.memory_health.observe(int(step), values) if f.sign == "memory_growing"
            ]
            if events:
                yield step, events

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "step": self.step,
            "rows": self.rows,
            "unreadable": self.unreadable,
            "series": {name: series.record() for name, series in self.series.items()},
            "axes": {name: [list(point) for point in axis.points] for name, axis in self.axes.items() if axis.points},
            "events": self.events,
            "noted": self.num_events,
            "stored": self.has_health_log,
            "unreadable_events": self.unreadable_events,
        }

    def _rows(self, tail: FileTail) -> Iterator[tuple[float, dict[str, float]]]:
        for line in tail.lines():
            try:
                row = parse_object(line)
                step = float(row.pop("step"))
                values = {str(k): float(v) for k, v in row.items() if isinstance(v, (int, float)) and math.isfinite(v)}
                if not math.isfinite(step):
                    raise ValueError("a step is no number")
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                self.unreadable += 1
                continue
            yield step, values

    def _add_row(self, step: float, values: dict[str, float]) -> dict[str, Any]:
        points: dict[str, list[float]] = {}
        for name, value in values.items():
            if name not in self.series:
                if len(self.series) >= MAX_CURVES:
                    continue
                self.series[name] = Series(independent=not name.startswith("val/"))
            low, high = mean_interval(name, value, values)
            self.series[name].add(step, value, low, high)
            points[escape_invisible(name)] = [value] if low is None or high is None else [value, low, high]
        if "actor/tokens" in values:
            self.axes["tokens"].add(step, values["actor/tokens"])
        self.step, self.rows = step, self.rows + 1
        # The checks are for RL: SFT and DPO have no reward.
        check = not self.has_health_log and "reward/mean" in values
        findings = self.health.observe(int(step), values) if check else []
        events = [_event(step, finding) for finding in findings]
        if not self.has_health_log and values.get("health/findings", 0.0) > len(findings):
            events.append({"step": step, "sign": "reward_hacking", "severity": "warn", "text": REWARD_HACKING_TEXT})
        self._add_events(events)
        totals = {name: list(axis.points[-1]) for name, axis in self.axes.items() if axis.points}
        return {"step": step, "points": points, "axes": totals, "events": events, "noted": self.num_events}

    def _add_events(self, events: list[dict[str, Any]]) -> None:
        self.num_events += len(events)
        self.events = (self.events + events)[-MAX_EVENTS:]


REWARD_HACKING_TEXT = (
    "the reward-hacking check had a finding: reward and verifier diverge; read the episodes with the highest reward "
    "(top_episodes) and the run's own log"
)


def _mean_text(first: Any, step: float) -> str:
    """Over which steps a value is a mean, which is why it differs from the last value of its curve."""
    return f" as the mean of steps {first:.0f} to {step:.0f}" if is_number(first) and math.isfinite(first) else ""


def _event(step: float, finding: Any) -> dict[str, Any]:
    measured = f"{finding.value:.3g}{_mean_text(finding.mean_from, step)}, limit {finding.threshold:.3g}"
    text = f"{finding.cause} ({measured}); {finding.remedy}"
    event = {"step": step, "sign": finding.sign, "severity": finding.severity, "text": text}
    return {
        **event,
        "metrics": sign_metrics(finding.sign),
        **({} if finding.since is None else {"since": finding.since}),
    }


def event_from_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `health.jsonl` as an event of the page; raises for any other line."""
    step, kind = float(row["step"]), row["kind"]
    if not math.isfinite(step):
        raise ValueError("a step is no number")
    if kind == "adjustment":
        text = f"learning rate × {float(row['lr_scale']):.3g}, clip range × {float(row['clip_scale']):.3g} from here on"
        return {"step": step, "sign": "adjusted", "severity": "act", "text": f"the run did: {text}"}
    sign = escape_invisible(str(row["sign"])[:100])
    if kind == "stop":
        return {"step": step, "sign": "stopped", "severity": "act", "text": f"the run was stopped, for {sign}"}
    if kind != "finding":
        raise ValueError("a kind of line that is not known")
    figures = [f"{row[name]:.3g}" if is_number(row[name]) else "–" for name in ("value", "threshold")]
    text = f"{row['cause']} ({figures[0]}{_mean_text(row.get('mean_from'), step)}, limit {figures[1]}); {row['remedy']}"
    severity = "act" if row["severity"] == "act" else "warn"
    since = {"since": row["since"]} if is_number(row.get("since")) and math.isfinite(row["since"]) else {}
    event = {"step": step, "sign": sign, "severity": severity, "text": escape_invisible(text[:2000])}
    return {**event, "metrics": sign_metrics(sign), **since}


def mean_interval(name: str, value: float, row: Mapping[str, float]) -> tuple[float | None, float | None]:
    """The 95 % interval of a mean, where its row has what it needs.

    Episodes of one task are not independent, so the tasks of a step are counted, not its episodes.
    """
    if name == "val/success/mean":
        return row.get("val/success/low"), row.get("val/success/high")
    groups = row.get("rollout/groups", 0.0)
    if name == "success/mean" and groups >= 1:
        return _rate_interval(round(value * groups, 6), groups)
    if name == "reward/mean" and groups >= 1 and value == row.get("success/mean"):
        return _rate_interval(round(value * groups, 6), groups)  # rewards of 0 and 1: the interval does not leave them
    kind, count = ("val/reward", row.get("val/n", 0.0)) if name == "val/reward/mean" else ("reward", groups)
    deviation = row.get(f"{kind}/std")
    if name == f"{kind}/mean" and deviation is not None and count >= 2:
        margin = _t_quantile(count) * deviation / math.sqrt(count)
        return value - margin, value + margin
    return None, None


@functools.lru_cache(4096)
def _rate_interval(successes: float, count: float) -> tuple[float, float]:
    interval = jeffreys(successes, count, LEVEL)
    return interval.low, interval.high


@functools.lru_cache(256)
def _t_quantile(count: float) -> float:
    return float(special.stdtrit(count - 1, 0.5 + LEVEL / 2))
