"""The health of SFT and DPO: a training loss that does not fall, and an evaluation loss that rises again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from practicum.config.health import SupervisedHealthSettings
from practicum.training.monitor.health import HEALTH_FILE, WARN, HealthFinding, HealthLog
from practicum.training.monitor.loggers import memory_metrics

LOSSES = ("dpo/loss", "actor/loss")
"""The training loss: the first of these that a step has."""


class SupervisedMonitor:
    """Observes the updates of a supervised run: memory into its metrics, findings into `health.jsonl`.

    It keeps the first and the last losses only, and the smallest evaluation loss; all of it is in a checkpoint.
    """

    def __init__(self, folder: Path, settings: SupervisedHealthSettings, say: Callable[[str], None] = print) -> None:
        self.folder, self.settings, self.say = folder, settings, say
        self.first: list[float] = []
        self.recent: list[float] = []
        self.best_eval: tuple[float, float] | None = None
        """The smallest evaluation loss, and the training loss at that time."""
        self.reported: dict[str, int] = {}
        self._log: HealthLog | None = None
        self._findings: list[HealthFinding] = []

    @property
    def quarter(self) -> int:
        """Updates that the loss is averaged over."""
        return max(1, self.settings.loss_flat_after // 4)

    def state(self) -> dict[str, Any]:
        observed = {"first": self.first, "recent": self.recent, "best_eval": self.best_eval, "reported": self.reported}
        return {"health": observed}

    def restore(self, state: Mapping[str, Any]) -> None:
        observed = state.get("health")
        if observed is None:  # a checkpoint from before this monitor
            return
        self.first, self.recent = list(observed["first"]), list(observed["recent"])
        self.best_eval = None if observed["best_eval"] is None else (observed["best_eval"][0], observed["best_eval"][1])
        self.reported = dict(observed["reported"])

    def open(self, keep_to: int | None) -> None:
        """Begin a new `health.jsonl`; with `keep_to`, continue it after the lines of that step."""
        self._log = HealthLog(self.folder / HEALTH_FILE, keep_to)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def observe(self, step: int, metrics: dict[str, float], episodes: Sequence[object] = ()) -> None:
        """Look at an update that is done, and add memory to its metrics."""
        metrics |= memory_metrics()
        loss = next((metrics[name] for name in LOSSES if name in metrics), math.nan)
        if math.isfinite(loss):
            if len(self.first) < self.quarter:
                self.first.append(loss)
            self.recent = [*self.recent, loss][-self.quarter :]
        self._findings = [finding for finding in (self._flat(step),) if finding is not None]

    def observe_validation(self, metrics: Mapping[str, float]) -> None:
        """Look at an evaluation."""
        value = metrics.get("eval/loss")
        if value is None or not math.isfinite(value) or not self.recent:
            return
        training = _mean(self.recent)
        if self.best_eval is None or value < self.best_eval[0]:
            self.best_eval = (value, training)
            return
        limit = self.best_eval[0] * (1 + self.settings.overfit_rise)
        if value > limit and training < self.best_eval[1]:
            cause = "the evaluation loss rises while the training loss falls: the model overfits"
            remedy = (
                "use fewer epochs, more demonstrations, a higher training.lora_dropout or a smaller training.lora_r; "
                "the result is the model of the smallest evaluation loss"
            )
            self._findings.append(HealthFinding("overfitting", WARN, value, limit, cause, remedy))

    def act(self, step: int) -> HealthFinding | None:
        """Report the findings of an update; none of them ends the run."""
        for finding in self._findings:
            last = self.reported.get(finding.sign)
            if last is not None and step - last < self.settings.repeat_every:
                continue
            self.reported[finding.sign] = step
            if self._log is not None:
                self._log.write_findings(step, [finding])
            self.say(finding.sentence(step))
        return None

    def _flat(self, step: int) -> HealthFinding | None:
        """A training loss that has not fallen since the first updates."""
        if step < self.settings.loss_flat_after or len(self.recent) < self.quarter or not self.first:
            return None
        before, now = _mean(self.first), _mean(self.recent)
        limit = before * (1 - self.settings.loss_flat)
        if before <= 0 or now < limit:
            return None
        cause = "the training loss has not fallen since the first updates"
        remedy = (
            "raise training.learning_rate (2e-5 to 5e-5), look at the data (`practicum show`), or collect more of it"
        )
        return HealthFinding("loss_flat", WARN, now, limit, cause, remedy)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
