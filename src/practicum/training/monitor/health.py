"""The health of a training run: known bad signs are looked for in the metrics of every step.

`HealthMonitor` reads metrics and returns findings. It changes nothing itself: with `action=adjust` it says by what the
learning rate and the clip range should be multiplied, with `action=stop` which finding should end the run.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.config.health import HealthSettings
from practicum.training.monitor.health_checks import (
    ACT,
    HEALTH_CHECKS,
    HealthFinding,
    MetricHistory,
    checked_values,
)


@dataclass(frozen=True)
class Adjustment:
    """What to multiply the learning rate and the clip range by, from now on."""

    lr_scale: float = 1.0
    clip_scale: float = 1.0


ADJUSTMENTS = {"lr": Adjustment(lr_scale=1 / 3), "clip": Adjustment(clip_scale=1 / 2)}
"""HTDAG's adjustments: learning rate 3e-4 to 1e-4, clip range 0.2 to 0.1."""

ADJUSTMENT_FOR_SIGN = {"reward_oscillating": "lr", "clip_fraction_high": "lr", "kl_high": "clip"}
"""Signs that one of the two adjustments helps against. The other signs need a person."""


class HealthMonitor:
    """Checks the metrics of one step after the other. The same metrics give the same findings, resumed or not."""

    def __init__(self, settings: HealthSettings) -> None:
        self.settings = settings
        self.history = MetricHistory()
        self.step = 0
        self.last_reported: dict[str, int] = {}  # sign: step
        self.at_act: set[str] = set()  # signs whose severity was `act` when last checked
        self.last_adjusted: dict[str, int] = {}  # adjustment: step
        self.num_adjustments = 0

    def observe(self, step: int, metrics: Mapping[str, float]) -> list[HealthFinding]:
        """Return the findings of this step.

        A sign that persists is left out until `repeat_every` steps have passed, except where its severity has just
        become `act`.
        """
        values = checked_values(metrics)
        self.step = step
        self.history.append(step, values, self.settings)
        findings = []
        for sign, health_check in HEALTH_CHECKS.items():
            if not all(name in values for name in health_check.needs):
                continue
            finding = health_check.check(self.history, self.settings)
            worse = finding is not None and finding.severity == ACT and sign not in self.at_act
            self.at_act.discard(sign)
            if finding is None:
                continue
            if finding.severity == ACT:
                self.at_act.add(sign)
            reported = self.last_reported.get(sign)
            if worse or reported is None or step - reported >= self.settings.repeat_every:
                self.last_reported[sign] = step
                findings.append(finding)
        return findings

    def adjustment(self, findings: Sequence[HealthFinding]) -> Adjustment | None:
        """With `action=adjust`, return the scales that these findings call for and count them as applied."""
        if self.settings.action != "adjust":
            return None
        lr, clip, any_due = 1.0, 1.0, False
        signs = (finding.sign for finding in findings if finding.severity == ACT)
        for name in dict.fromkeys(ADJUSTMENT_FOR_SIGN[sign] for sign in signs if sign in ADJUSTMENT_FOR_SIGN):
            last = self.last_adjusted.get(name)
            due = last is None or self.step - last >= self.settings.cooldown
            if not due or self.num_adjustments >= self.settings.max_adjustments:
                continue
            self.last_adjusted[name] = self.step
            self.num_adjustments += 1
            lr, clip, any_due = lr * ADJUSTMENTS[name].lr_scale, clip * ADJUSTMENTS[name].clip_scale, True
        return Adjustment(lr, clip) if any_due else None

    def should_stop(self, findings: Sequence[HealthFinding]) -> HealthFinding | None:
        """With `action=stop`, return the first finding whose severity is `act`."""
        if self.settings.action != "stop":
            return None
        return next((finding for finding in findings if finding.severity == ACT), None)

    def state(self) -> dict[str, Any]:
        """Return all state in JSON's own types, except that of memory, which belongs to the process."""
        series = {name: points for name, points in self.history.series.items() if name != "memory"}
        return {
            "step": self.step,
            "series": {name: [[step, value] for step, value in points] for name, points in series.items()},
            "starts": copy.deepcopy(self.history.first_values),
            "said": {sign: step for sign, step in self.last_reported.items() if sign != "memory_growing"},
            "acute": sorted(self.at_act),
            "applied": dict(self.last_adjusted),
            "adjustments": self.num_adjustments,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`, to the bit."""
        series = {name: [(int(s), float(v)) for s, v in points] for name, points in state["series"].items()}
        first_values = {name: [float(v) for v in values] for name, values in state["starts"].items()}
        self.history = MetricHistory(series, first_values)
        self.step = int(state["step"])
        self.last_reported = {sign: int(step) for sign, step in state["said"].items()}
        self.at_act = set(state["acute"])
        self.last_adjusted = {name: int(step) for name, step in state["applied"].items()}
        self.num_adjustments = int(state["adjustments"])
