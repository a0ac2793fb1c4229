"""The reward-hacking panel: does the training reward still mean what it should?

A verifier is a score that nothing is trained on: the reward part named `verifier`, or else success. When the reward
rises and the verifier does not, or when the episodes that are paid best are the ones the verifier likes least, the
policy has found something in the reward that nobody meant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from practicum.errors import UserError, did_you_mean
from practicum.training.monitor.health import ACT, WARN, Finding
from practicum.trajectory import Outcome, Trajectory
from practicum.utils.arrays import FloatArray

ACTIONS = ("warn", "stop")
VERIFIER = "verifier"
CEILING = 0.95
"""Share of successes from which success can hardly rise, so that a reward that goes on rising proves nothing."""
CLEAR = 3.0
"""Standard errors from which a difference is clear. It is looked at again after every step, so two would not do."""


@dataclass
class RewardHackingSettings:
    """When reward and verifier count as parted."""

    enable: bool = True
    window: int = 5  # steps averaged, at the start and now
    alarm: float = 0.2  # gap between the rises (each in [-1, 1]) that is an alarm
    action: str = "warn"  # warn: say it; stop: end the run
    keep_top: int = 5  # best-paid episodes kept to be read by a person

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise UserError(f"hacking.action={self.action} is unknown.{did_you_mean(self.action, ACTIONS)}")
        if self.window < 1 or self.keep_top < 0:
            raise UserError("hacking.window must be at least 1 and hacking.keep_top at least 0.")


@dataclass(frozen=True, slots=True)
class Score:
    """One score over the episodes of one step: mean, variance of the episodes, squared standard error of the mean."""

    mean: float
    variance: float
    error: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What is kept of a step. `agreement` is None where one of the two scores does not vary."""

    step: int
    groups: int
    reward: Score
    verifier: Score
    agreement: float | None
    parts: Mapping[str, float]

    @classmethod
    def plain(cls, record: Mapping[str, Any]) -> Reading:
        scores = {name: Score(**record[name]) for name in ("reward", "verifier")}
        return cls(**{**record, **scores})


@dataclass(frozen=True, slots=True)
class EpisodeRank:
    """An episode of the top list, by name."""

    step: int
    reward: float
    task: str
    attempt: int

    @property
    def rank(self) -> tuple[float, int, str, int]:
        """Highest reward first; among equals the later step, since a person wants to see the newest behaviour."""
        return (-self.reward, -self.step, self.task, self.attempt)


def read(step: int, episodes: Sequence[Trajectory], verifier: Sequence[float]) -> Reading:
    """The figures of one step."""
    rewards = np.array([episode.reward for episode in episodes], dtype=np.float64)
    verified = np.array(verifier, dtype=np.float64)
    labels = [episode.group for episode in episodes]
    names = sorted({name for episode in episodes for name in episode.components} - {VERIFIER})
    varies = len(rewards) > 2 and np.ptp(rewards) > 0 and np.ptp(verified) > 0
    return Reading(
        step,
        len(set(labels)),
        _score(rewards, labels),
        _score(verified, labels),
        _rank_correlation(rewards, verified) if varies else None,
        {name: math.fsum(episode.components.get(name, 0.0) for episode in episodes) / len(episodes) for name in names},
    )


def _score(values: FloatArray, labels: Sequence[str]) -> Score:
    """Episodes of one task are alike: what was drawn independently are the groups, and errors are counted over them."""
    count, mean = len(values), float(values.mean())
    places = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    if len(places) < 2:  # one task only: its episodes are all there is to go by
        return Score(mean, float(values.var()), float(values.var(ddof=1)) / count)
    totals = np.bincount([places[label] for label in labels], values - mean)
    error = float((totals * totals).sum()) * len(places) / (len(places) - 1) / count**2
    return Score(mean, float(values.var()), error)


def _rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Spearman's: the correlation of the ranks, ties sharing theirs."""
    a, b = stats.rankdata(first), stats.rankdata(second)
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / math.sqrt(float((a * a).sum() * (b * b).sum())))


@dataclass(frozen=True, slots=True)
class Rise:
    """How far a score rose between two windows, scaled into [-1, 1]; its standard error, and what it was divided by."""

    scaled: float
    error: float
    scale: float

    @property
    def clear(self) -> float:
        """The rise in standard errors."""
        return _ratio(self.scaled, self.error)


@dataclass(frozen=True, slots=True)
class SignalChange:
    """Two windows compared: what rose since the last step of the earlier one."""

    since: int
    reward: Rise
    verifier: Rise

    @property
    def gap(self) -> float:
        return self.reward.scaled - self.verifier.scaled


def rise(before: Sequence[Score], now: Sequence[Score]) -> Rise:
    """The difference of two windows' means over twice the standard deviation of all their episodes.

    That is 1 when the windows do not overlap at all and 0 when they are alike, whatever unit the score has. The scale
    is a hundredth of the means at least, so that the last digits of a constant score are no movement.
    """
    old, new = _mean([score.mean for score in before]), _mean([score.mean for score in now])
    difference = new - old
    within = (_mean([score.variance for score in before]) + _mean([score.variance for score in now])) / 2
    scale = max(2 * math.sqrt(within + (difference / 2) ** 2), 0.01 * max(abs(old), abs(new)), 1e-12)
    error = math.sqrt(_error([score.error for score in before]) + _error([score.error for score in now]))
    return Rise(difference / scale, error / scale, scale)


def change(before: Sequence[Reading], now: Sequence[Reading]) -> SignalChange:
    return SignalChange(
        before[-1].step,
        rise([reading.reward for reading in before], [reading.reward for reading in now]),
        rise([reading.verifier for reading in before], [reading.verifier for reading in now]),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _error(squares: Sequence[float]) -> float:
    """Squared standard error of the mean of several means."""
    return math.fsum(squares) / len(squares) ** 2


def _ratio(difference: float, error: float) -> float:
    """A difference in standard errors. Scores without any spread leave no doubt; rounding is none."""
    if abs(difference) < 1e-9:
        return 0.0
    return difference / error if error > 0 else math.copysign(math.inf, difference)


class RewardHackingMonitor:
    """Watches reward against verifier over a run and keeps the best-paid episodes.

    `fresh_top` holds, after each `observe`, the episodes of that step that are now in the top list, for the caller to
    write to disk.
    """

    def __init__(self, settings: RewardHackingSettings) -> None:
        self.settings = settings
        self.source = "success"  # what the readings verify by
        self.told_apart = False  # whether the reward was ever anything but success
        self.first: list[Reading] = []
        self.recent: list[Reading] = []
        self.best: list[Reading] = []  # the window in which the verifier stood highest
        self.count = 0
        self.said: int | None = None
        self.places: list[EpisodeRank] = []
        self.new_top_episodes: list[Trajectory] = []
        self._held: dict[EpisodeRank, Trajectory] = {}

    def observe(self, step: int, episodes: Sequence[Trajectory]) -> tuple[dict[str, float], Finding | None]:
        """Metrics of this step, and a finding when reward and verifier have parted."""
        self.new_top_episodes = []
        scored = [episode for episode in episodes if episode.scored]
        if not self.settings.enable or not scored:
            return {}, None
        self._rank(step, scored)
        metrics = shares(scored)
        verified, values = self._verified(scored)
        if len(verified) < 2:  # one episode says nothing of its own error
            return metrics, None
        reading = read(step, verified, values)
        self._remember(reading)
        if self.source == "success" and not self.told_apart:
            return metrics, None
        metrics["hacking/verifier/mean"] = reading.verifier.mean
        if reading.agreement is not None:
            metrics["hacking/agreement"] = reading.agreement
        size = self.settings.window
        if self.count > size:
            metrics["hacking/gap"] = change(self.first, self.recent[-min(size, self.count - size) :]).gap
        return metrics, self._alarm(step)

    def top(self) -> list[tuple[int, float, Trajectory]]:
        """Step, reward and record of the best-paid episodes, one a task, best first; among equals the newest first.

        Episodes from before a `restore` are on the caller's disk and not here; `places` names them all.
        """
        return [(p.step, p.reward, self._held[p]) for p in self.places if p in self._held]

    def _verified(self, scored: Sequence[Trajectory]) -> tuple[list[Trajectory], list[float]]:
        """The episodes that have a verifier's score, and the scores. A real verifier, once seen, replaces success."""
        marked = [episode for episode in scored if VERIFIER in episode.components]
        if marked and self.source == "success":
            self.source = VERIFIER
            self.first, self.recent, self.best, self.count = [], [], [], 0
        if self.source == VERIFIER:
            return marked, [episode.components[VERIFIER] for episode in marked]
        values = [float(episode.outcome is Outcome.SUCCESS) for episode in scored]
        self.told_apart |= any(e.reward != value for e, value in zip(scored, values, strict=True))
        return list(scored), values

    def _remember(self, reading: Reading) -> None:
        size = self.settings.window
        self.count += 1
        if self.count <= size:
            self.first.append(reading)
        self.recent = [*self.recent, reading][-size:]
        if len(self.recent) == size and (not self.best or _height(self.recent) > _height(self.best)):
            self.best = list(self.recent)

    def _alarm(self, step: int) -> Finding | None:
        finding = self._parted() or self._opposed()
        if finding is None or (self.said is not None and step - self.said < 2 * self.settings.window):
            return None
        self.said = step
        return finding

    def _parted(self) -> Finding | None:
        """The reward rose clearly; the verifier did not since the start, or has clearly fallen since its best.

        That it did not is to be shown, not only unproven: its interval lies below half of the reward's rise.
        """
        limit = self.settings.alarm
        at_ceiling = self.source == "success" and _height(self.recent) >= CEILING
        if self.count < 2 * self.settings.window or at_ceiling:
            return None
        for before in (self.first, self.best):
            seen = change(before, self.recent)
            fallen = seen.verifier.clear < -CLEAR
            still = seen.verifier.clear < 2 and seen.verifier.scaled + 2 * seen.verifier.error < seen.reward.scaled / 2
            parted = still if before is self.first else fallen
            if parted and seen.gap > limit and seen.reward.clear > CLEAR:
                word = "falls" if fallen else "does not follow"
                cause = f"the reward rises since step {seen.since} and {self._who} {word}{self._driver(before)}"
                return self._finding("reward_hacking", seen.gap, limit, cause)
        return None

    def _opposed(self) -> Finding | None:
        """Within the steps of the last window, the higher the reward the lower the verifier."""
        rows = [(r.agreement, r.groups) for r in self.recent if r.agreement is not None]
        if len(self.recent) < self.settings.window or not rows:
            return None
        value = _mean([agreement for agreement, _ in rows])
        # Groups, not episodes, are what was drawn independently: the careful count.
        limit = -max(self.settings.alarm, CLEAR / math.sqrt(sum(groups for _, groups in rows)))
        if value >= limit:
            return None
        return self._finding("reward_opposed", value, limit, f"the better episodes are paid, the worse {self._who} is")

    @property
    def _who(self) -> str:
        return "success" if self.source == "success" else "the verifier"

    def _driver(self, before: Sequence[Reading]) -> str:
        """The reward part that rose most, where parts are known."""
        rises = {
            name: _mean([r.parts.get(name, 0.0) for r in self.recent]) - _mean([r.parts.get(name, 0.0) for r in before])
            for name in sorted({name for r in (*before, *self.recent) for name in r.parts})
        }
        name = max(rises, key=lambda key: rises[key], default=None)
        return f", driven by the part '{name}'" if name is not None and rises[name] > 0 else ""

    def _finding(self, sign: str, value: float, limit: float, cause: str) -> Finding:
        remedy = "read the best-paid episodes and make the reward stop paying for what they do"
        return Finding(sign, ACT if self.settings.action == "stop" else WARN, value, limit, cause, remedy)

    def _rank(self, step: int, scored: Sequence[Trajectory]) -> None:
        fresh = {EpisodeRank(step, float(e.reward), e.task.id, e.attempt): e for e in scored}
        best: dict[str, EpisodeRank] = {}
        for place in sorted([*self.places, *fresh], key=lambda p: p.rank):
            best.setdefault(place.task, place)
        self.places = list(best.values())[: self.settings.keep_top]
        self._held = {p: e for p, e in (self._held | fresh).items() if p in self.places}
        self.new_top_episodes = [fresh[place] for place in self.places if place in fresh]

    def state(self) -> dict[str, Any]:
        """Everything but the episodes, in JSON's own types."""
        return {
            "source": self.source,
            "told_apart": self.told_apart,
            "first": [asdict(reading) for reading in self.first],
            "recent": [asdict(reading) for reading in self.recent],
            "best": [asdict(reading) for reading in self.best],
            "count": self.count,
            "said": self.said,
            "top": [[place.step, place.reward, place.task, place.attempt] for place in self.places],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`, to the bit."""
        self.source, self.told_apart = state["source"], state["told_apart"]
        self.first = [Reading.plain(record) for record in state["first"]]
        self.recent = [Reading.plain(record) for record in state["recent"]]
        self.best = [Reading.plain(record) for record in state["best"]]
        self.count, self.said = state["count"], state["said"]
        self.places = [EpisodeRank(*place) for place in state["top"]]
        self.new_top_episodes, self._held = [], {}


def shares(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """How much of all reward, signs aside, each part is. The verifier is no part of the reward."""
    totals: dict[str, float] = {}
    for episode in episodes:
        for name, value in episode.components.items():
            if name != VERIFIER:
                totals[name] = totals.get(name, 0.0) + abs(value)
    whole = math.fsum(totals.values())
    return {f"hacking/share/{name}": totals[name] / whole for name in sorted(totals)} if whole > 0 else {}


def _height(window: Sequence[Reading]) -> float:
    return _mean([reading.verifier.mean for reading in window])
