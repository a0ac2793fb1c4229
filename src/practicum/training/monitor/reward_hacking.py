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

from practicum.config.health import RewardHackingSettings
from practicum.training.monitor.health import ACT, WARN, HealthFinding
from practicum.training.monitor.metrics import (
    VERIFIER,
    StepStats,
    compare_windows,
    component_shares,
    mean,
    mean_verifier,
    step_stats,
)
from practicum.trajectory import Outcome, Trajectory

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
            apart = did_not_rise if before is self.first else fell
            if apart and compared.gap > limit and reward.z_score > CLEAR_Z_SCORE:
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
