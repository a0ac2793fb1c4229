"""The canary: a test, at every weight update, that an engine with its own copy of the weights has the new ones.

Two things are measured. *Agreement*: the engine samples replies to fixed prompts, and the learner scores them.
*Movement*: replies kept from an earlier version are scored again by both; the share of the learner's change that the
engine shows is 1 when the update arrived and 0 when it did not. An engine that kept its weights repeats itself to the
bit, so a lost update shows however coarse the engine's arithmetic is. That an update did arrive can be shown only if
the change is larger than the engine's noise; after a smaller one the older replies are kept, so that changes add up
until they can be seen.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from practicum.utils.arrays import FloatArray
from practicum.utils.tables import percent

PROMPTS = (
    "Say in a few words what you can do.",
    "What is 17 + 25, and how do you know?",
    "Name three things that one finds in a kitchen.",
    "Go on from here: one, two, three,",
)
REPLY_TOKENS = 32
MIN_STANDARD_ERRORS = 6.0
"""Standard errors that the share must lie from 1 (or 0) for the update to be called lost (or proven)."""
MAX_NOISE_RATIO = 5.0
"""How many times its median so far the difference between engine and learner may be."""
ALLOWED_RMS_DIFFERENCE = 1e-4
"""Root mean square difference per token that is always allowed: float32 in another order of summation."""
LOGPROB_RESOLUTION = 1e-5
"""Log-probs closer than this count as equal."""


@dataclass(frozen=True)
class Probe:
    """A prompt and a reply whose log-probs are compared."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]


@dataclass(frozen=True)
class ProbeLogprobs:
    """Log-probs of the same tokens, [tokens]: `expected` by the learner, `returned` by the engine."""

    expected: FloatArray
    returned: FloatArray

    @property
    def difference(self) -> FloatArray:
        return self.returned - self.expected


@dataclass(frozen=True)
class CanaryReport:
    """What one update showed; a line of `canary.jsonl`."""

    version: int
    verdict: str
    """first, proven, too small to tell, or lost."""
    difference_mean: float
    """Mean absolute difference between engine and learner per token."""
    difference_max: float
    moved: float = 0.0
    """Root mean square of the learner's change per token, on the probes kept from an earlier version."""
    arrived: float | None = None
    """The share of that change which the engine shows."""
    reason: str = ""
    """Why the update counts as lost."""


class Canary:
    """Judges updates by probes of the last version that was proven, and by the usual difference so far."""

    def __init__(self, limit: float) -> None:
        """`limit` is the largest mean difference per token between engine and learner."""
        self.limit = limit
        self.probes: tuple[Probe, ...] = ()
        self._baseline: ProbeLogprobs | None = None
        """Of the probes, when they were kept."""
        self._previous: ProbeLogprobs | None = None
        """Of the probes, at the last accepted update."""
        self._noise: list[float] = []

    @property
    def allowed(self) -> float:
        """The root mean square difference that still counts as the engine's noise."""
        if not self._noise:
            return self.limit
        return max(ALLOWED_RMS_DIFFERENCE, MAX_NOISE_RATIO * statistics.median(self._noise))

    def judge(self, version: int, fresh: ProbeLogprobs, rescored: ProbeLogprobs | None) -> CanaryReport:
        """Judge an update by replies that the engine just sampled (`fresh`) and by `probes` scored again (`rescored`).

        `rescored` is None while there are no probes.
        """
        differences = np.abs(fresh.difference)
        values: dict[str, Any] = {
            "difference_mean": float(differences.mean()),
            "difference_max": float(differences.max()),
        }
        worst, share, certainty, reason = rms(fresh.difference), None, 0.0, ""
        if rescored is not None and self._baseline is not None and self._previous is not None:
            worst = max(worst, rms(rescored.difference))
            # Against the last version, where an engine with old weights repeats itself to the bit; and against the last
            # one that was proven, since when small changes have added up.
            for earlier in (self._previous, self._baseline):
                moved = rescored.expected - earlier.expected
                share, certainty = share_of_movement(moved, rescored.returned - earlier.returned)
                values |= {"moved": rms(moved), "arrived": None if share is None else round(share, 4)}
                if share is not None and share < 0.5 and (1 - share) * certainty > MIN_STANDARD_ERRORS:
                    arrived = percent(share, digits=0)
                    reason = f"the learner moved by {rms(moved):.3g} per token, the engine by {arrived} of that"
                    break
        if not reason and values["difference_mean"] > self.limit:
            reason = f"it is {values['difference_mean']:.3g} per token away from the learner (limit {self.limit:g})"
        elif not reason and self._noise and worst > self.allowed:
            usual = self.allowed / MAX_NOISE_RATIO
            reason = f"it is {worst:.3g} per token away from the learner, where {usual:.3g} was usual"
        if reason:
            return CanaryReport(version, "lost", reason=reason, **values)
        if rescored is None:
            return CanaryReport(version, "first", **values)
        proven = share is not None and share * certainty > MIN_STANDARD_ERRORS
        return CanaryReport(version, "proven" if proven else "too small to tell", **values)

    def accept(self, fresh: ProbeLogprobs, rescored: ProbeLogprobs | None) -> None:
        """Record an update that was not lost: its differences are part of the usual noise."""
        self._noise.append(rms(fresh.difference))
        if rescored is not None:
            self._previous = rescored

    def set_probes(self, probes: Sequence[Probe], logprobs: ProbeLogprobs) -> None:
        """Keep these probes; the next updates are judged by how their log-probs change."""
        self.probes, self._baseline, self._previous = tuple(probes), logprobs, logprobs

    def is_unchanged(self, expected: FloatArray) -> bool:
        """Whether the learner gives the probes the same log-probs as at the last accepted update."""
        previous = self._previous
        return previous is not None and bool(np.abs(expected - previous.expected).max() < LOGPROB_RESOLUTION)

    def has_accepted_weights(self, returned: FloatArray) -> bool:
        """Whether an engine that was restarted has the weights of the last accepted update."""
        return self._previous is not None and rms(returned - self._previous.expected) <= self.allowed


def share_of_movement(moved: FloatArray, followed: FloatArray) -> tuple[float | None, float]:
    """Return the share of one change that another shows (least squares), and how many standard errors lie between a
    share of 0 and of 1. The share of no change is None."""
    size = float(moved @ moved)
    if size == 0.0:
        return None, 0.0
    share = float(followed @ moved) / size
    residual = followed - share * moved
    deviation = max(LOGPROB_RESOLUTION, float(np.sqrt(residual @ residual / max(1, len(residual) - 1))))
    return share, size**0.5 / deviation


def rms(values: FloatArray) -> float:
    """Return the root mean square; 0 of no values."""
    return float(np.sqrt(np.mean(values**2))) if len(values) else 0.0
