"""The curves of one metrics file and the run's health events, read as they grow.

Events are the run's own (`health.jsonl`). A run without that file is judged again from its metrics; the record says
which it was.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from scipy import special

from practicum.data.jsonl import parse_object
from practicum.errors import UserError
from practicum.evaluation.stats.intervals import jeffreys
from practicum.report.runs import CONFIG, HEALTH, TIMING
from practicum.report.series import Series
from practicum.training.monitor.health import HealthMonitor, HealthSettings
from practicum.utils.escape import is_number, shown

LEVEL = 0.95
MOST_NAMES = 400
MOST_EVENTS = 500
LINE_LIMIT = 4 << 20
CONFIG_LIMIT = 64 << 10

Point = tuple[float, float | None, float | None]


class Tail:
    """New whole lines of a file that grows. A file that was replaced or cut is read again from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.identity: tuple[int, int] | None = None
        self.head = b""

    def changed(self) -> bool:
        """Whether what was read before is no longer there."""
        try:
            state = self.path.stat()
            with self.path.open("rb") as file:
                head = file.read(len(self.head))
        except OSError:
            return self.identity is not None
        known = self.identity in (None, (state.st_dev, state.st_ino))
        return not known or state.st_size < self.offset or head != self.head

    def lines(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                state = self.path.stat()
                self.identity = (state.st_dev, state.st_ino)
                if not self.head:
                    self.head = file.read(64)
                file.seek(self.offset)
                while line := file.readline(LINE_LIMIT):
                    if not line.endswith(b"\n") and len(line) < LINE_LIMIT:
                        self.head = self.head if self.offset else b""
                        return  # still being written
                    self.offset += len(line)
                    yield line
        except OSError:
            return


class Curves:
    """What `metrics.jsonl` says. `advance` reads on and returns what is new; `record` is all of it."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.begin()

    def begin(self) -> None:
        self.tail, self.clock = Tail(self.path), Tail(self.path.with_name(TIMING))
        self.journal = Tail(self.path.with_name(HEALTH))
        self.stored = self.journal.path.is_file()
        settings = health_settings(self.path.with_name(CONFIG))
        self.health, self.memory = HealthMonitor(settings), HealthMonitor(settings)
        self.series: dict[str, Series] = {}
        self.events: list[dict[str, Any]] = []
        self.noted = 0  # events so far, those no longer held too: a page tells by it what it has heard before
        self.step, self.rows, self.unreadable, self.unreadable_events = 0.0, 0, 0, 0

    def advance(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether all that was known is void, and for every new step its points and events."""
        begun = not self.stored and self.journal.path.is_file()
        again = self.tail.changed() or self.journal.changed() or begun
        if again:
            self.begin()
        found = [self._take(step, values) for step, values in self._rows(self.tail)]
        for step, events in self._noted() if self.stored else self._memory():
            self._keep(events)
            found.append({"step": step, "points": {}, "events": events, "noted": self.noted})
        return again, found

    def _noted(self) -> Iterator[tuple[float, list[dict[str, Any]]]]:
        """What the run wrote down of its health since the last look."""
        for line in self.journal.lines():
            try:
                row = parse_object(line)
                event = noted(row)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                self.unreadable_events += 1
                continue
            yield event["step"], [event]

    def _memory(self) -> Iterator[tuple[float, list[dict[str, Any]]]]:
        for step, values in self._rows(self.clock):
            events = [_event(step, f) for f in self.memory.observe(int(step), values) if f.sign == "memory_growing"]
            if events:
                yield step, events

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "step": self.step,
            "rows": self.rows,
            "unreadable": self.unreadable,
            "series": {name: series.record() for name, series in self.series.items()},
            "events": self.events,
            "noted": self.noted,
            "stored": self.stored,
            "unreadable_events": self.unreadable_events,
        }

    def _rows(self, tail: Tail) -> Iterator[tuple[float, dict[str, float]]]:
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

    def _take(self, step: float, values: dict[str, float]) -> dict[str, Any]:
        points: dict[str, list[float]] = {}
        for name, value in values.items():
            if name not in self.series:
                if len(self.series) >= MOST_NAMES:
                    continue
                self.series[name] = Series()
            low, high = band(name, value, values)
            self.series[name].add(step, value, low, high)
            points[shown(name)] = [value] if low is None or high is None else [value, low, high]
        self.step, self.rows = step, self.rows + 1
        # Imitation has its own look: these signs are about practice.
        judged = not self.stored and "reward/mean" in values
        findings = self.health.observe(int(step), values) if judged else []
        events = [_event(step, finding) for finding in findings]
        if not self.stored and values.get("health/findings", 0.0) > len(findings):
            events.append({"step": step, "sign": "reward_hacking", "severity": "warn", "text": HACKED})
        self._keep(events)
        return {"step": step, "points": points, "events": events, "noted": self.noted}

    def _keep(self, events: list[dict[str, Any]]) -> None:
        self.noted += len(events)
        self.events = (self.events + events)[-MOST_EVENTS:]


HACKED = (
    "the reward-hacking panel had a finding: reward and verifier part; read the best-paid episodes (top_episodes) and "
    "the run's own log"
)


def _event(step: float, finding: Any) -> dict[str, Any]:
    text = f"{finding.cause} ({finding.value:.3g}, limit {finding.threshold:.3g}); {finding.remedy}"
    return {"step": step, "sign": finding.sign, "severity": finding.severity, "text": text}


def noted(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `health.jsonl` as an event of the page; what is no such line raises."""
    step, kind = float(row["step"]), row["kind"]
    if not math.isfinite(step):
        raise ValueError("a step is no number")
    if kind == "adjustment":
        text = f"learning rate × {float(row['lr_scale']):.3g}, clip range × {float(row['clip_scale']):.3g} from here on"
        return {"step": step, "sign": "adjusted", "severity": "act", "text": f"the run did: {text}"}
    sign = shown(str(row["sign"])[:100])
    if kind == "stop":
        return {"step": step, "sign": "stopped", "severity": "act", "text": f"the run was stopped, for {sign}"}
    if kind != "finding":
        raise ValueError("a kind of line that is not known")
    figures = [f"{row[name]:.3g}" if is_number(row[name]) else "–" for name in ("value", "threshold")]
    text = f"{row['cause']} ({figures[0]}, limit {figures[1]}); {row['remedy']}"
    severity = "act" if row["severity"] == "act" else "warn"
    return {"step": step, "sign": sign, "severity": severity, "text": shown(text[:2000])}


def band(name: str, value: float, row: Mapping[str, float]) -> tuple[float | None, float | None]:
    """The 95 % interval of a mean, where its row says enough to have one.

    Chains of one task are alike, so the tasks of a step are counted, not its episodes: the careful count.
    """
    if name == "val/success/mean":
        return row.get("val/success/low"), row.get("val/success/high")
    groups = row.get("rollout/groups", 0.0)
    if name == "success/mean" and groups >= 1:
        return _rate(round(value * groups, 6), groups)
    kind, count = ("val/reward", row.get("val/n", 0.0)) if name == "val/reward/mean" else ("reward", groups)
    deviation = row.get(f"{kind}/std")
    if name == f"{kind}/mean" and deviation is not None and count >= 2:
        margin = _t(count) * deviation / math.sqrt(count)
        return value - margin, value + margin
    return None, None


@functools.lru_cache(4096)
def _rate(successes: float, count: float) -> tuple[float, float]:
    interval = jeffreys(successes, count, LEVEL)
    return interval.low, interval.high


@functools.lru_cache(256)
def _t(count: float) -> float:
    return float(special.stdtrit(count - 1, 0.5 + LEVEL / 2))


def config_text(folder: Path) -> str | None:
    """The run's configuration as it stands in its file."""
    try:
        data = (folder / CONFIG).read_bytes()[: CONFIG_LIMIT + 1]
    except OSError:
        return None
    return shown(data[:CONFIG_LIMIT].decode("utf-8", "replace")) + ("\n…" if len(data) > CONFIG_LIMIT else "")


def planned_steps(folder: Path) -> int | None:
    """How many steps the run was asked for, where its configuration says so."""
    trainer = _config(folder / CONFIG).get("trainer")
    steps = trainer.get("total_training_steps") if isinstance(trainer, dict) else None
    return steps if type(steps) is int and steps > 0 else None


def health_settings(path: Path) -> HealthSettings:
    """The limits that the run itself was watched with; the usual ones where its configuration does not say."""
    section = _config(path).get("health")
    known: dict[str, Any] = {field.name: type(field.default) for field in fields(HealthSettings)}
    given = {
        name: known[name](value)
        for name, value in (section if isinstance(section, dict) else {}).items()
        if name in known and (isinstance(value, str) if known[name] is str else type(value) in (int, float))
    }
    try:
        return HealthSettings(**given)
    except (UserError, TypeError, ValueError):
        return HealthSettings()


def _config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = yaml.safe_load(file.read(CONFIG_LIMIT))
    except (OSError, yaml.YAMLError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
