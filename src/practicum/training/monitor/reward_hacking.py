"""The reward-hacking monitor: does the training reward still measure what it should?

A verifier is a score that nothing is trained on: the reward component named `verifier`, or else success. When the
reward rises and the verifier does not, or when the episodes with the highest reward are those with the lowest verifier
score, the policy exploits something in the reward that nobody intended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from practicum.config.fields import check_fields
from practicum.config.health import RewardHackingSettings
from practicum.training.monitor.health import ACT, WARN, HealthFinding
from practicum.trajectory import Outcome, Trajectory
from practicum.utils.arrays import FloatArray

VERIFIER = "verifier"
"""The reward component that is the verifier's score."""


@dataclass(frozen=True, slots=True)
class ScoreStats:
    """A score over the episodes of one step: mean, variance over episodes, squared standard error of the mean."""

    mean: float
    variance: float
    squared_error: float

    def record(self) -> dict[str, float]:
        return {"mean": self.mean, "variance": self.variance, "error": self.squared_error}

    @classmethod
    def from_record(cls, record: Mapping[str, float]) -> ScoreStats:
        return cls(record["mean"], record["variance"], record["error"])


@dataclass(frozen=True, slots=True)
class StepStats:
    """What is kept of a step. `agreement`: rank correlation of the two scores, None where one of them does not vary."""

    step: int
    num_groups: int
    reward: ScoreStats
    verifier: ScoreStats
    agreement: float | None
    components: Mapping[str, float]  # the mean of each reward component

    def record(self) -> dict[str, Any]:
        """Return the record in JSON's own types; its keys are those of checkpoints written so far."""
        return {
            "step": self.step,
            "groups": self.num_groups,
            "reward": self.reward.record(),
            "verifier": self.verifier.record(),
            "agreement": self.agreement,
            "parts": dict(self.components),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> StepStats:
        reward, verifier = (ScoreStats.from_record(record[name]) for name in ("reward", "verifier"))
        return cls(record["step"], record["groups"], reward, verifier, record["agreement"], record["parts"])


def step_stats(step: int, episodes: Sequence[Trajectory], verifier: Sequence[float]) -> StepStats:
    """Return the statistics of one step from its episodes and the verifier's score of each."""
    rewards = np.array([episode.reward for episode in episodes], dtype=np.float64)
    verified = np.array(verifier, dtype=np.float64)
    groups = [episode.group for episode in episodes]
    names = sorted({name for episode in episodes for name in episode.components} - {VERIFIER})
    both_vary = len(rewards) > 2 and np.ptp(rewards) > 0 and np.ptp(verified) > 0
    return StepStats(
        step,
        len(set(groups)),
        _score_stats(rewards, groups),
        _score_stats(verified, groups),
        _rank_correlation(rewards, verified) if both_vary else None,
        {name: math.fsum(episode.components.get(name, 0.0) for episode in episodes) / len(episodes) for name in names},
    )


def _score_stats(values: FloatArray, groups: Sequence[str]) -> ScoreStats:
    """Episodes of one task are alike: the groups were drawn independently, and standard errors are taken over them."""
    count, mean = len(values), float(values.mean())
    index = {group: position for position, group in enumerate(dict.fromkeys(groups))}
    if len(index) < 2:  # one task only: its episodes are all there is
        return ScoreStats(mean, float(values.var()), float(values.var(ddof=1)) / count)
    totals = np.bincount([index[group] for group in groups], values - mean)
    squared_error = float((totals * totals).sum()) * len(index) / (len(index) - 1) / count**2
    return ScoreStats(mean, float(values.var()), squared_error)


def _rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Spearman's: the correlation of the ranks, ties sharing theirs.

    Not `scipy.stats.spearmanr`: it rounds differently in the last bit, which `metrics.jsonl` would show.
    """
    a, b = stats.rankdata(first), stats.rankdata(second)
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / math.sqrt(float((a * a).sum() * (b * b).sum())))


@dataclass(frozen=True, slots=True)
class ScoreRise:
    """How far a score rose between two windows, divided by `scale` into [-1, 1], and its standard error."""

    scaled: float
    error: float
    scale: float

    @property
    def z_score(self) -> float:
        """The rise in standard errors. Scores without any spread leave no doubt; rounding counts as no rise."""
        if abs(self.scaled) < 1e-9:
            return 0.0
        return self.scaled / self.error if self.error > 0 else math.copysign(math.inf, self.scaled)


@dataclass(frozen=True, slots=True)
class WindowComparison:
    """Two windows of steps compared: how far each score rose since the last step of the earlier one."""

    since_step: int
    reward: ScoreRise
    verifier: ScoreRise

    @property
    def gap(self) -> float:
        """The rise of the reward less that of the verifier."""
        return self.reward.scaled - self.verifier.scaled


def compare_windows(before: Sequence[StepStats], now: Sequence[StepStats]) -> WindowComparison:
    """Return how far reward and verifier rose from one window of steps to another."""
    return WindowComparison(
        before[-1].step,
        score_rise([step.reward for step in before], [step.reward for step in now]),
        score_rise([step.verifier for step in before], [step.verifier for step in now]),
    )


def score_rise(before: Sequence[ScoreStats], now: Sequence[ScoreStats]) -> ScoreRise:
    """Return the difference of two windows' means over twice the standard deviation of all their episodes.

    That is 1 when the windows do not overlap at all and 0 when they are alike, whatever unit the score has. The scale
    is at least a hundredth of the means, so that the last digits of a constant score are no movement.
    """
    old, new = mean([score.mean for score in before]), mean([score.mean for score in now])
    difference = new - old
    within = (mean([score.variance for score in before]) + mean([score.variance for score in now])) / 2
    scale = max(2 * math.sqrt(within + (difference / 2) ** 2), 0.01 * max(abs(old), abs(new)), 1e-12)
    error = math.sqrt(_squared_error_of_mean(before) + _squared_error_of_mean(now))
    return ScoreRise(difference / scale, error / scale, scale)


def _squared_error_of_mean(window: Sequence[ScoreStats]) -> float:
    return math.fsum([score.squared_error for score in window]) / len(window) ** 2


def mean(values: Sequence[float]) -> float:
    """Return the mean, summed without rounding."""
    return math.fsum(values) / len(values)


def mean_verifier(window: Sequence[StepStats]) -> float:
    """Return the mean of the verifier's score over a window of steps."""
    return mean([step.verifier.mean for step in window])


def component_shares(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of each reward component in all reward, by absolute value, as metrics.

    The verifier is no component of the reward.
    """
    totals: dict[str, float] = {}
    for episode in episodes:
        for name, value in episode.components.items():
            if name != VERIFIER:
                totals[name] = totals.get(name, 0.0) + abs(value)
    total = math.fsum(totals.values())
    return {f"hacking/share/{name}": totals[name] / total for name in sorted(totals)} if total > 0 else {}


SUCCESS_CEILING = 0.95
"""Success rate from which it can hardly rise, so that a reward that goes on rising proves nothing."""
CLEAR_Z_SCORE = 3.0
"""Standard errors from which a difference is clear. It is tested again after every step, so two would not do."""


@dataclass(frozen=True, slots=True)
class EpisodeRank:
    """An episode of the top list, by name."""

    step: int
    reward: float
    task: str
    attempt: int

    @property
    def sort_key(self) -> tuple[float, int, str, int]:
        """Highest reward first; among equals the later step, since a person wants to see the newest behaviour."""
        return (-self.reward, -self.step, self.task, self.attempt)


class RewardHackingMonitor:
    """Compares reward and verifier over a run and keeps the episodes with the highest reward.

    `new_top_episodes` holds, after each `observe`, the episodes of that step that are now in the top list, for the
    caller to write to disk.
    """

    def __init__(self, settings: RewardHackingSettings) -> None:
        check_fields(settings, "hacking.")
        self.settings = settings
        self.source = "success"  # what the verifier's scores are
        self.reward_differs = False  # whether the reward was ever anything but success
        self.first: list[StepStats] = []
        self.recent: list[StepStats] = []
        self.best: list[StepStats] = []  # the window in which the verifier was highest
        self.num_steps = 0
        self.last_alarm: int | None = None
        self.top_ranks: list[EpisodeRank] = []
        self.new_top_episodes: list[Trajectory] = []
        self._top_episodes: dict[EpisodeRank, Trajectory] = {}

    def observe(self, step: int, episodes: Sequence[Trajectory]) -> tuple[dict[str, float], HealthFinding | None]:
        """Return the metrics of this step, and a finding if reward and verifier have come apart."""
        self.new_top_episodes = []
        scored = [episode for episode in episodes if episode.scored]
        if not self.settings.enable or not scored:
            return {}, None
        self._update_top(step, scored)
        metrics = component_shares(scored)
        verified, values = self._verified(scored)
        if len(verified) < 2:  # one episode has no standard error
            return metrics, None
        current = step_stats(step, verified, values)
        self._append(current)
        if self.source == "success" and not self.reward_differs:
            return metrics, None
        metrics["hacking/verifier/mean"] = current.verifier.mean
        if current.agreement is not None:
            metrics["hacking/agreement"] = current.agreement
        size = self.settings.window
        if self.num_steps > size:
            last = self.recent[-min(size, self.num_steps - size) :]
            metrics["hacking/gap"] = compare_windows(self.first, last).gap
        return metrics, self._alarm(step)

    def top(self) -> list[tuple[int, float, Trajectory]]:
        """Return step, reward and record of the top episodes, one per task, best first; among equals the newest first.

        Episodes from before a `restore` are on the caller's disk and not here; `top_ranks` names them all.
        """
        return [(r.step, r.reward, self._top_episodes[r]) for r in self.top_ranks if r in self._top_episodes]

    def _verified(self, scored: Sequence[Trajectory]) -> tuple[list[Trajectory], list[float]]:
        """The episodes that have a verifier's score, and the scores. A real verifier, once seen, replaces success."""
        with_verifier = [episode for episode in scored if VERIFIER in episode.components]
        if with_verifier and self.source == "success":
            self.source = VERIFIER
            self.first, self.recent, self.best, self.num_steps = [], [], [], 0
        if self.source == VERIFIER:
            return with_verifier, [episode.components[VERIFIER] for episode in with_verifier]
        values = [float(episode.outcome is Outcome.SUCCESS) for episode in scored]
        self.reward_differs |= any(e.reward != value for e, value in zip(scored, values, strict=True))
        return list(scored), values

    def _append(self, current: StepStats) -> None:
        size = self.settings.window
        self.num_steps += 1
        if self.num_steps <= size:
            self.first.append(current)
        self.recent = [*self.recent, current][-size:]
        if len(self.recent) == size and (not self.best or mean_verifier(self.recent) > mean_verifier(self.best)):
            self.best = list(self.recent)

    def _alarm(self, step: int) -> HealthFinding | None:
        finding = self._check_rise() or self._check_agreement()
        if finding is None or (self.last_alarm is not None and step - self.last_alarm < 2 * self.settings.window):
            return None
        self.last_alarm = step
        return finding

    def _check_rise(self) -> HealthFinding | None:
        """The reward rose clearly; the verifier did not since the start, or has clearly fallen since its best window.

        That it did not rise must be shown, not only be unproven: its interval is below half of the reward's rise.
        """
        limit = self.settings.alarm
        at_ceiling = self.source == "success" and mean_verifier(self.recent) >= SUCCESS_CEILING
        if self.num_steps < 2 * self.settings.window or at_ceiling:
            return None
        for before in (self.first, self.best):
            compared = compare_windows(before, self.recent)
            reward, verifier = compared.reward, compared.verifier
            fell = verifier.z_score < -CLEAR_Z_SCORE
            did_not_rise = verifier.z_score < 2 and verifier.scaled + 2 * verifier.error < reward.scaled / 2
            diverged = did_not_rise if before is self.first else fell
            if diverged and compared.gap > limit and reward.z_score > CLEAR_Z_SCORE:
                verb = "falls" if fell else "does not follow"
                contrast = f"{self._verifier_name} {verb}{self._driver(before)}"
                cause = f"the reward rises since step {compared.since_step} and {contrast}"
                return self._finding("reward_hacking", compared.gap, limit, cause)
        return None

    def _check_agreement(self) -> HealthFinding | None:
        """Within the steps of the last window, the higher the reward the lower the verifier."""
        pairs = [(s.agreement, s.num_groups) for s in self.recent if s.agreement is not None]
        if len(self.recent) < self.settings.window or not pairs:
            return None
        value = mean([agreement for agreement, _ in pairs])
        # Groups, not episodes, were drawn independently: the careful count.
        limit = -max(self.settings.alarm, CLEAR_Z_SCORE / math.sqrt(sum(num_groups for _, num_groups in pairs)))
        if value >= limit:
            return None
        cause = f"the higher the reward of an episode, the lower {self._verifier_name} is"
        return self._finding("reward_opposed", value, limit, cause)

    @property
    def _verifier_name(self) -> str:
        return "success" if self.source == "success" else "the verifier"

    def _driver(self, before: Sequence[StepStats]) -> str:
        """The reward component that rose most, where there are components."""

        def average(window: Sequence[StepStats], name: str) -> float:
            return mean([step.components.get(name, 0.0) for step in window])

        names = sorted({name for step in (*before, *self.recent) for name in step.components})
        rises = {name: average(self.recent, name) - average(before, name) for name in names}
        name = max(rises, key=lambda key: rises[key], default=None)
        return f", driven by the component '{name}'" if name is not None and rises[name] > 0 else ""

    def _finding(self, sign: str, value: float, limit: float, cause: str) -> HealthFinding:
        remedy = "read the episodes with the highest reward and make the reward stop paying for what they do"
        return HealthFinding(sign, ACT if self.settings.action == "stop" else WARN, value, limit, cause, remedy)

    def _update_top(self, step: int, scored: Sequence[Trajectory]) -> None:
        new = {EpisodeRank(step, float(e.reward), e.task.id, e.attempt): e for e in scored}
        best: dict[str, EpisodeRank] = {}
        for rank in sorted([*self.top_ranks, *new], key=lambda rank: rank.sort_key):
            best.setdefault(rank.task, rank)
        self.top_ranks = list(best.values())[: self.settings.keep_top]
        self._top_episodes = {r: e for r, e in (self._top_episodes | new).items() if r in self.top_ranks}
        self.new_top_episodes = [new[rank] for rank in self.top_ranks if rank in new]

    def state(self) -> dict[str, Any]:
        """Return everything but the episodes, in JSON's own types."""
        return {
            "source": self.source,
            "told_apart": self.reward_differs,
            "first": [step.record() for step in self.first],
            "recent": [step.record() for step in self.recent],
            "best": [step.record() for step in self.best],
            "count": self.num_steps,
            "said": self.last_alarm,
            "top": [[rank.step, rank.reward, rank.task, rank.attempt] for rank in self.top_ranks],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`, to the bit."""
        self.source, self.reward_differs = state["source"], state["told_apart"]
        self.first = [StepStats.from_record(record) for record in state["first"]]
        self.recent = [StepStats.from_record(record) for record in state["recent"]]
        self.best = [StepStats.from_record(record) for record in state["best"]]
        self.num_steps, self.last_alarm = state["count"], state["said"]
        self.top_ranks = [EpisodeRank(*rank) for rank in state["top"]]
        self.new_top_episodes, self._top_episodes = [], {}
