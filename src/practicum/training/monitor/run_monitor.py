"""What watches an RL run: the health of its metrics, reward hacking, and the episodes it saves for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.config.health import HealthSettings, RewardHackingSettings
from practicum.training.episode_saver import EpisodeSaver
from practicum.training.monitor.health import HealthMonitor
from practicum.training.monitor.health_checks import HealthFinding
from practicum.training.monitor.health_log import HEALTH_FILE, HealthLog
from practicum.training.monitor.reward_hacking import RewardHackingMonitor
from practicum.trajectory import Trajectory
from practicum.utils.memory import resident_megabytes

if TYPE_CHECKING:
    from practicum.training.rl_trainer import RLTrainer


class RunMonitor:
    """Observes every step of a run, writes `health.jsonl`, and adjusts or stops the training where it is set to."""

    def __init__(
        self,
        folder: Path,
        trainer: RLTrainer,
        health: HealthSettings | None = None,
        hacking: RewardHackingSettings | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.folder, self.trainer, self.say = folder, trainer, say
        self.hacking_settings = hacking or RewardHackingSettings()
        self.health = HealthMonitor(health or HealthSettings())
        self.hacking = RewardHackingMonitor(self.hacking_settings)
        self.saver = EpisodeSaver(folder, trainer.settings.adv_estimator)
        trainer.on_advantages = self.saver.set_advantages
        self._log: HealthLog | None = None
        self._findings: list[HealthFinding] = []
        self._hacking_finding: HealthFinding | None = None

    def state(self) -> dict[str, Any]:
        """What was observed so far, as plain JSON."""
        return {"health": self.health.state(), "hacking": self.hacking.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.health.restore(state["health"])
        self.hacking.restore(state["hacking"])

    def open(self, keep_to: int | None) -> None:
        """Begin a new `health.jsonl`; with `keep_to`, continue it after the lines of that step."""
        self._log = HealthLog(self.folder / HEALTH_FILE, keep_to)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def observe(self, step: int, metrics: dict[str, float], episodes: Sequence[Trajectory]) -> None:
        """Look at a step that is done and add to its metrics; what follows from it comes with `act`."""
        metrics["memory/rss_mb"] = resident_megabytes()
        findings = self.health.observe(step, metrics)
        self._hacking_finding = None
        if self.hacking_settings.enable:
            shares, self._hacking_finding = self.hacking.observe(step, episodes)
            metrics |= shares
            top = [(rank.step, rank.task, rank.attempt) for rank in self.hacking.top_ranks]
            self.saver.save_top(step, self.hacking.new_top_episodes, top)
            if self._hacking_finding is not None:
                findings.append(self._hacking_finding)
        self.saver.save_group(step)
        self.saver.clear()
        metrics["health/findings"] = float(sum(finding.sign != "memory_growing" for finding in findings))
        self._findings = findings

    def act(self, step: int) -> HealthFinding | None:
        """Report the findings of a step whose metrics are written and adjust the trainer; one may have to stop it."""
        log, findings = self._log, self._findings
        assert log is not None
        log.write_findings(step, findings)
        for finding in findings:
            self.say(finding.sentence(step))
        adjustment = self.health.adjustment(findings)
        if adjustment is not None:
            self.trainer.lr_scale *= adjustment.lr_scale
            self.trainer.clip_scale *= adjustment.clip_scale
            log.write_adjustment(step, adjustment)
            self.say(
                f"Step {step}: health.action=adjust: learning rate × {adjustment.lr_scale:.3g}, "
                f"clip × {adjustment.clip_scale:.3g} from here on."
            )
        fatal = self.health.should_stop(findings)
        if self.hacking_settings.action == "stop" and self._hacking_finding is not None:
            fatal = self._hacking_finding
        if fatal is not None:
            log.write_stop(step, fatal)
        return fatal
