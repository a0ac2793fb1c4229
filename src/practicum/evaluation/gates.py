"""HTDAG's gates: what to do with a trained policy, by its improvement and the interval of that improvement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from practicum.evaluation.stats.intervals import Interval


class Gate(StrEnum):
    """What to do with the trained policy."""

    DEPLOY = "deploy"
    PROMISING = "promising: run more"
    MARGINAL = "marginal: find the cause"
    KEEP = "keep the baseline"
    UNPROVEN = "not shown: run more"
    WITHHELD = "none"


NEXT_STEPS: Mapping[Gate, tuple[str, ...]] = {
    Gate.DEPLOY: (
        "deploy the trained policy behind a switch that can roll it back",
        "keep the panel for the next one",
    ),
    Gate.PROMISING: ("evaluate on more tasks", "train longer, or with another seed, and compare again"),
    Gate.MARGINAL: (
        "refine the reward from the failures",
        "run SFT on expert episodes first",
        "train on ten times the episodes",
    ),
    Gate.KEEP: (
        "keep using the baseline",
        "improve prompts",
        "run SFT on expert episodes",
        "write down what was learned",
    ),
    Gate.UNPROVEN: ("keep using the baseline until a difference is shown", "evaluate on a new panel of more tasks"),
    Gate.WITHHELD: (),  # the reason says what to do
}
RELATIVE_THRESHOLDS = ((0.15, Gate.DEPLOY), (0.10, Gate.PROMISING), (0.05, Gate.MARGINAL))
"""The relative improvement that each gate needs, the highest first."""
ERRORS_PER_IMPROVEMENT = 5 / 3
"""The share fewer errors that counts as much as a relative improvement of 1: 25 % as much as 15 %."""
MIN_LOW_SHARE = 1 / 3
"""Share of a gate's threshold that the lower end of the interval must exceed."""
MIN_GAIN = 0.005
"""Smallest difference of success that passes a gate: a fifth more of 0.1 % changes nothing."""
MAX_GATE_UNSCORED_SHARE = 0.02
"""Share of a policy's episodes without a score up to which a gate is given."""


@dataclass(frozen=True, slots=True)
class Improvement:
    """A difference of success rates with its interval, and what it is relative to the baseline and to its errors.

    Relative figures divide the difference and its limits by the baseline's rate, or error rate, as observed.
    """

    baseline: float
    difference: float
    interval: Interval

    @property
    def relative_base(self) -> float:
        """What the relative improvement divides by: 1, so that it is in points, where the baseline is zero."""
        return self.baseline if self.baseline > 0 else 1.0

    @property
    def relative(self) -> float | None:
        return relative_improvement(self.baseline, self.baseline + self.difference)

    @property
    def error_reduction(self) -> float | None:
        """Share of the baseline's errors that are gone; None where it makes none."""
        return self.difference / (1 - self.baseline) if self.baseline < 1 else None

    def reaches(self, limit: float, strictly: bool) -> bool:
        """Whether the relative improvement or the error reduction, and a third of it for the lower end, is reached."""
        scales = [(self.relative_base, limit)]
        if self.baseline < 1:
            scales.append((1 - self.baseline, limit * ERRORS_PER_IMPROVEMENT))
        return any(
            _above(self.difference / base, needed, strictly)
            and _above(self.interval.low / base, needed * MIN_LOW_SHARE, True)
            for base, needed in scales
        )

    def estimate_reaches(self, limit: float) -> bool:
        """Whether the estimate alone reaches a threshold."""
        reduction = self.error_reduction
        return _above(self.difference / self.relative_base, limit, False) or (
            reduction is not None and _above(reduction, limit * ERRORS_PER_IMPROVEMENT, False)
        )

    def text(self) -> str:
        """Points, relative gain and error reduction, each with its interval."""
        low, high = self.interval.low, self.interval.high
        parts = [f"{100 * self.difference:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"]
        if self.relative is not None:
            base = self.baseline
            parts.append(f"{100 * self.relative:+.1f} % relative [{100 * low / base:+.1f}, {100 * high / base:+.1f}]")
        else:
            parts.append("no ratio, because the baseline is zero")
        if self.error_reduction is not None:
            parts.append(self._error_text(self.error_reduction))
        return f"{', '.join(parts)} ({100 * self.interval.level:.3g} % intervals)"

    def _error_text(self, reduction: float) -> str:
        """The change of the errors in words: "more errors", not "-20 % fewer"; no policy loses over 100 % of them."""
        limits = [100 * limit / (1 - self.baseline) for limit in (self.interval.low, self.interval.high)]
        if reduction < 0:
            more = [-limit for limit in reversed(limits)]
            return f"{-100 * reduction:.1f} % more errors [{more[0]:.1f}, {more[1]:.1f}]"
        return f"{100 * reduction:.1f} % fewer errors [{limits[0]:.1f}, {min(limits[1], 100.0):.1f}]"


@dataclass(frozen=True, slots=True)
class GateDecision:
    """A gate, the improvement it was decided by, and why no gate is given where it is `WITHHELD`."""

    gate: Gate
    improvement: Improvement
    reason: str = ""

    @property
    def sentence(self) -> str:
        if self.gate is Gate.WITHHELD:
            return f"none: {self.reason}"
        return f"{self.gate.value}, at {self.improvement.text()}"


def relative_improvement(baseline: float, trained: float) -> float | None:
    """trained / baseline - 1; None where the baseline is zero or below and the ratio has no meaning."""
    return trained / baseline - 1 if baseline > 0 else None


def decide(improvement: Improvement, significant: bool, obstacle: str = "") -> GateDecision:
    """The gate of an improvement.

    Deploy needs more than 15 % relative improvement or 25 % fewer errors, and a lower end of the interval above a third
    of that; promising needs 10 % or 16.7 %, marginal 5 % or 8.3 %, each with its third. What reaches a threshold by its
    estimate alone, or is not significant, is `UNPROVEN`. `obstacle` says why no gate above `KEEP` may be given.
    """
    is_large_enough = round(improvement.difference, 9) >= MIN_GAIN
    gate = Gate.KEEP
    if is_large_enough and significant:
        gate = next(
            (gate for limit, gate in RELATIVE_THRESHOLDS if improvement.reaches(limit, gate is Gate.DEPLOY)), Gate.KEEP
        )
    if gate is Gate.KEEP and is_large_enough and improvement.estimate_reaches(RELATIVE_THRESHOLDS[-1][0]):
        gate = Gate.UNPROVEN
    if obstacle and gate is not Gate.KEEP:
        return GateDecision(Gate.WITHHELD, improvement, obstacle)
    return GateDecision(gate, improvement)


def lower(first: GateDecision, second: GateDecision) -> GateDecision:
    """The one of two decisions that promises less."""
    order = (Gate.DEPLOY, Gate.PROMISING, Gate.MARGINAL, Gate.UNPROVEN, Gate.KEEP, Gate.WITHHELD)
    return first if order.index(first.gate) >= order.index(second.gate) else second


def _above(value: float, limit: float, strictly: bool) -> bool:
    """0.69 / 0.6 - 1 is fifteen percent whatever the last bit says."""
    value, limit = round(value, 9), round(limit, 9)
    return value > limit if strictly else value >= limit
