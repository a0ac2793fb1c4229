"""The canary: does an engine with a copy of the weights answer as the learner's weights say it must?

Two things are measured at every update. *Agreement*: replies sampled from fixed prompts by the engine,
scored by the learner. *Movement*: replies kept from an earlier version, scored again by both; the share
of the learner's change that the engine shows is 1 when the update arrived and 0 when it did not. An engine
that kept its weights repeats itself to the bit, so this shows however coarse its arithmetic. That an update
did arrive can be seen if the change is larger than the engine's noise; one that is smaller proves nothing,
and the older replies are kept, so that changes add up until they can be seen.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from practicum.utils.arrays import FloatArray

QUESTIONS = (
    "Say in a few words what you can do.",
    "What is 17 + 25, and how do you know?",
    "Name three things that one finds in a kitchen.",
    "Go on from here: one, two, three,",
)
REPLY_TOKENS = 32
CERTAIN = 6.0
"""Standard errors that a share must lie from 1 (or 0) for the update to be called lost (or proven)."""
GROWTH = 5.0
"""How many times its usual size the difference between engine and learner may have."""
FLOOR = 1e-4
"""A difference (root mean square, a token) that is always allowed: float32 in another order of summation."""
RESOLUTION = 1e-5
"""Log-probs closer than this are the same number."""


@dataclass(frozen=True)
class Probe:
    """A prompt and a reply whose log-probs are asked for."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]


@dataclass(frozen=True)
class Reading:
    """Log-probs of the same tokens: what the learner's weights say, and what the engine said."""

    expected: FloatArray
    answered: FloatArray

    @property
    def difference(self) -> FloatArray:
        return self.answered - self.expected


@dataclass(frozen=True)
class Report:
    """What one update showed. `reason` is set when it was lost."""

    version: int
    verdict: str
    """first, proven, too small to tell, or lost."""
    difference_mean: float
    difference_max: float
    moved: float = 0.0
    """Root mean square of the learner's change on the replies kept."""
    arrived: float | None = None
    """The share of that change which the engine shows."""
    reason: str = ""


class Canary:
    """Remembers replies of the last proven version, what was said of them then and last, and the usual difference."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.probes: tuple[Probe, ...] = ()
        self._baseline: Reading | None = None
        self._before: Reading | None = None
        self._noise: list[float] = []

    @property
    def allowed(self) -> float:
        """The root mean square difference that is still noise."""
        return max(FLOOR, GROWTH * statistics.median(self._noise)) if self._noise else self.limit

    def judge(self, version: int, fresh: Reading, held: Reading | None) -> Report:
        """`fresh` is of replies that the engine just sampled; `held` of `probes`, once there are any."""
        apart = np.abs(fresh.difference)
        facts: dict[str, Any] = {"difference_mean": float(apart.mean()), "difference_max": float(apart.max())}
        worst, share, certainty, reason = rms(fresh.difference), None, 0.0, ""
        if held is not None and self._baseline is not None and self._before is not None:
            worst = max(worst, rms(held.difference))
            # Against the last version, where a stale engine repeats itself to the bit; and against the last
            # one that was proven, since when small changes have added up.
            for earlier in (self._before, self._baseline):
                moved = held.expected - earlier.expected
                share, certainty = arrival(moved, held.answered - earlier.answered)
                facts |= {"moved": rms(moved), "arrived": None if share is None else round(share, 4)}
                if share is not None and share < 0.5 and (1 - share) * certainty > CERTAIN:
                    reason = f"the learner moved by {rms(moved):.3g} a token, the engine by {share:.0%} of that"
                    break
        if not reason and facts["difference_mean"] > self.limit:
            reason = f"it is {facts['difference_mean']:.3g} a token away from the learner (limit {self.limit:g})"
        elif not reason and self._noise and worst > self.allowed:
            reason = f"it is {worst:.3g} a token away from the learner, where {self.allowed / GROWTH:.3g} was usual"
        if reason:
            return Report(version, "lost", reason=reason, **facts)
        if held is None:
            return Report(version, "first", **facts)
        proven = share is not None and share * certainty > CERTAIN
        return Report(version, "proven" if proven else "too small to tell", **facts)

    def accept(self, fresh: Reading, held: Reading | None) -> None:
        """The update counts; what it showed is part of what is usual."""
        self._noise.append(rms(fresh.difference))
        if held is not None:
            self._before = held

    def keep(self, probes: Sequence[Probe], reading: Reading) -> None:
        """These replies are what the next update is held against."""
        self.probes, self._baseline, self._before = tuple(probes), reading, reading

    def unchanged(self, expected: FloatArray) -> bool:
        """Whether the learner says the same of the probes as at the last update."""
        return self._before is not None and bool(np.abs(expected - self._before.expected).max() < RESOLUTION)

    def still_there(self, answered: FloatArray) -> bool:
        """Whether an engine that was started again holds the weights that were last accepted."""
        return self._before is not None and rms(answered - self._before.expected) <= self.allowed


def arrival(moved: FloatArray, followed: FloatArray) -> tuple[float | None, float]:
    """The share of a movement that another followed (least squares), and how many standard errors 0 and 1 are apart."""
    size = float(moved @ moved)
    if size == 0.0:
        return None, 0.0
    share = float(followed @ moved) / size
    rest = followed - share * moved
    spread = max(RESOLUTION, float(np.sqrt(rest @ rest / max(1, len(rest) - 1))))
    return share, size**0.5 / spread


def rms(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(values**2))) if len(values) else 0.0
