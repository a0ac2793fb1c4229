"""The life of a training run: validate, step, watch, save; stop cleanly; go on as if nothing had happened.

`metrics.jsonl` and the checkpoints hold nothing that depends on the clock, so a run that was killed
and resumed leaves the same bytes as one that was not. Times and memory are in `timing.jsonl`. What the
watch saw and did is in `health.jsonl`; some episodes are kept, with the advantages they were trained with.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from practicum.data.checkpoint_folder import CHECKPOINT_NAME
from practicum.errors import UserError
from practicum.evaluation.result import EvalResult
from practicum.evaluation.stats.intervals import COMPARISON_LEVEL
from practicum.training import checkpoint
from practicum.training.checkpoint import Checkpoints
from practicum.training.episode_saver import EpisodeSaver
from practicum.training.monitor.health import Finding, HealthMonitor, HealthSettings
from practicum.training.monitor.health_log import HEALTH, HealthLog
from practicum.training.monitor.loggers import Logger
from practicum.training.monitor.metrics import MetricsFile, summary_stats
from practicum.training.monitor.reward_hacking import RewardHackingMonitor, RewardHackingSettings
from practicum.training.rl_trainer import RLTrainer
from practicum.trajectory import Trajectory
from practicum.utils.memory import resident_megabytes

RESUME_MODES = ("auto", "disable", "resume_path")
METRICS = "metrics.jsonl"
CLOCKED = ("timing/", "memory/")
"""Metrics that two equal runs do not share."""
VALIDATED = (
    *("val/success/mean", "val/success/low", "val/success/high", "val/n", "val/errors"),
    *("val/reward/mean", "val/reward/std", "val/reward/min", "val/reward/max"),
)
"""What a validation gives."""


@dataclass(frozen=True)
class RunSettings:
    """When to validate, save and stop. Frequencies of -1 mean never; `patience` 0 means no early stop."""

    steps: int
    save_freq: int = -1
    save_total_limit: int | None = None
    test_freq: int = -1
    val_before_train: bool = True
    best_metric: str = "val/success/mean"
    patience: int = 0
    resume_mode: str = "auto"
    resume_from_path: str | None = None
    health: HealthSettings = field(default_factory=HealthSettings)
    hacking: RewardHackingSettings = field(default_factory=RewardHackingSettings)

    def __post_init__(self) -> None:
        if self.best_metric not in VALIDATED:
            raise UserError(f"trainer.best_metric={self.best_metric}: validation gives {', '.join(VALIDATED)}.")
        if self.patience and self.test_freq <= 0:
            raise UserError(
                f"trainer.early_stopping_patience={self.patience} counts validations on the way, and there are none: "
                "set trainer.test_freq above 0."
            )


@dataclass
class TrainState:
    """Where a run stands; with the practice's own state, all that a checkpoint needs besides tensors."""

    step: int = 0
    best_value: float | None = None
    best_step: int | None = None
    stale_validations: int = 0
    finished: str | None = None


class Run:
    """One run in one folder."""

    def __init__(
        self,
        folder: Path,
        practice: RLTrainer,
        settings: RunSettings,
        validate: Callable[[], Awaitable[EvalResult]] | None = None,
        loggers: Callable[[bool], Sequence[Logger]] = lambda resumed: (),
        say: Callable[[str], None] = print,
        on_step: Callable[[int, dict[str, float]], None] | None = None,
        on_episode: Callable[[Trajectory], None] | None = None,
        tick: Callable[[], None] | None = None,
    ) -> None:
        self.folder = folder
        self.practice = practice
        self.settings = settings
        self.validate = validate
        self.say = say
        self.on_step, self.on_episode, self.tick = on_step, on_episode, tick
        self.checkpoints = Checkpoints(folder, settings.save_total_limit)
        self.health = HealthMonitor(settings.health)
        self.hacking = RewardHackingMonitor(settings.hacking)
        self.keeper = EpisodeSaver(folder, practice.settings.estimator)
        practice.on_credit = self.keeper.hear
        self.standing = TrainState()
        self.resumed = False
        self._make_loggers = loggers
        self._asked_to_stop = False
        self._hacked: Finding | None = None
        self._journal: HealthLog | None = None

    @property
    def policy(self) -> Any:
        return self.practice.policy

    # -- resume -----------------------------------------------------------------------------

    def resume(self) -> None:
        """Find where to go on, by `resume_mode`, and put that state in place."""
        mode, path = self.settings.resume_mode, self.settings.resume_from_path
        if mode not in RESUME_MODES:
            raise UserError(f"trainer.resume_mode={mode}: choose one of {', '.join(RESUME_MODES)}.")
        if mode == "disable":
            if self.checkpoints.steps():
                raise UserError(
                    f"'{self.folder}' holds checkpoints and trainer.resume_mode is 'disable'; "
                    "choose another trainer.experiment_name, or resume_mode=auto."
                )
            return
        if mode == "resume_path":
            if not path or not CHECKPOINT_NAME.fullmatch(Path(path).name) or not Path(path).is_dir():
                raise UserError("trainer.resume_mode=resume_path needs trainer.resume_from_path=…/global_step_N.")
            self._restore(Path(path))
            return
        found, complaints = self.checkpoints.newest()
        for complaint in complaints:
            self.say(complaint)
        metrics = self.folder / METRICS
        if found is not None:
            self._restore(found)
        elif metrics.is_file() and metrics.stat().st_size:
            self.say(f"'{self.folder}' holds no checkpoint to go on from: the run begins anew.")

    def _restore(self, path: Path) -> None:
        state = checkpoint.load(path, self.policy, self.practice.critic)
        self.practice.restore(state["practice"])
        self.health.restore(state["health"])
        self.hacking.restore(state["hacking"])
        self.standing = TrainState(**state["standing"])
        self.resumed = True
        self.say(f"Resumed at step {self.standing.step} from '{path}'.")

    def _save(self) -> None:
        self.checkpoints.save(
            self.standing.step,
            self.policy,
            self.practice.critic,
            {
                "practice": self.practice.state(),
                "health": self.health.state(),
                "hacking": self.hacking.state(),
                "standing": vars(self.standing),
            },
            best=self.standing.best_step,
        )

    # -- the loop ---------------------------------------------------------------------------

    async def go(self) -> TrainState:
        """From wherever the run stands to its end."""
        standing, settings = self.standing, self.settings
        if standing.step >= settings.steps or standing.finished is not None:
            self.say(
                f"Nothing to do: this run has {standing.step} steps ({standing.finished or 'all it was asked for'})."
            )
            return standing
        loggers = list(self._make_loggers(self.resumed))
        keep_to = standing.step if self.resumed else None
        self._journal = journal = HealthLog(self.folder / HEALTH, keep_to)  # before metrics: who sees those finds this
        metrics = MetricsFile(self.folder / METRICS, keep_to)
        timing = MetricsFile(self.folder / "timing.jsonl", keep_to)

        def write(step: int, values: dict[str, float]) -> None:
            metrics.write(step, {k: v for k, v in values.items() if not k.startswith(CLOCKED)})
            timing.write(step, {k: v for k, v in values.items() if k.startswith(CLOCKED)})
            for logger in loggers:
                logger.write(step, values)

        try:
            with self._signals():
                if not self.resumed and self.validate is not None and settings.val_before_train:
                    write(0, await self._validated(0))
                while standing.step < settings.steps and standing.finished is None and not self._asked_to_stop:
                    await self._one_step(standing.step, write)
                if self._asked_to_stop and standing.finished is None:
                    self._save()
                    raise KeyboardInterrupt
        finally:
            journal.close()
            metrics.close()
            timing.close()
            for logger in loggers:
                logger.close()
        return standing

    async def _one_step(self, step: int, write: Callable[[int, dict[str, float]], None]) -> None:
        settings, standing, done = self.settings, self.standing, step + 1
        self.policy.set_version(self.policy.version)  # every step begins with empty caches, resumed or not
        try:
            values, episodes = await self.practice.step(step, self.on_episode, self.tick)
        except FloatingPointError as error:
            raise UserError(f"Step {done}: {error}. {self._last_good()}") from error
        values["memory/rss_mb"] = resident_megabytes()
        found = self._watch(done, values, episodes)
        last = done == settings.steps
        if self.validate is not None and settings.test_freq > 0 and (done % settings.test_freq == 0 or last):
            values |= await self._validated(done)
        write(done, values)
        if self.on_step is not None:
            self.on_step(done, values)
        standing.step = done
        self._act(done, found)
        if settings.patience and standing.stale_validations >= settings.patience:
            standing.finished = f"stopped early: {standing.stale_validations} validations without a new best"
            self.say(f"Step {done}: {standing.finished}; the best was step {standing.best_step}.")
        due = settings.save_freq > 0 and (done % settings.save_freq == 0 or last or standing.finished is not None)
        if due or (settings.save_freq > 0 and standing.best_step == done):
            self._save()

    async def _validated(self, step: int) -> dict[str, float]:
        assert self.validate is not None
        result = await self.validate()
        counts = {"val/n": float(len(result.scored)), "val/errors": float(len(result.unscored))}
        if not result.scored:
            first = next((f"{a.outcome}: {a.error}" for a in result.unscored), "the panel is empty")
            self.say(f"Step {step}: no episode of the validation could be scored (first: {first}); it does not count.")
            return counts
        interval = result.interval(COMPARISON_LEVEL)
        values = {
            "val/success/mean": result.success_rate,
            "val/success/low": interval.low,
            "val/success/high": interval.high,
            **counts,
            **summary_stats("val/reward", [attempt.reward for attempt in result.scored]),
        }
        value, standing = values[self.settings.best_metric], self.standing
        if standing.best_value is None or value > standing.best_value:
            standing.best_value, standing.best_step, standing.stale_validations = value, step, 0
        else:
            standing.stale_validations += 1
        return values

    # -- watching ---------------------------------------------------------------------------

    def _watch(self, step: int, values: dict[str, float], episodes: Sequence[Trajectory]) -> list[Finding]:
        found = self.health.observe(step, values)
        if self.settings.hacking.enable:
            shares, finding = self.hacking.observe(step, episodes)
            values |= shares
            wanted = [(place.step, place.task, place.attempt) for place in self.hacking.places]
            self.keeper.keep_top(step, self.hacking.new_top_episodes, wanted)
            self._hacked = finding
            if finding is not None:
                found.append(finding)
        self.keeper.keep_group(step)
        self.keeper.forget()
        values["health/findings"] = float(sum(finding.sign != "memory_growing" for finding in found))
        return found

    def _act(self, step: int, found: list[Finding]) -> None:
        journal = self._journal
        assert journal is not None
        journal.seen(step, found)
        for finding in found:
            self.say(finding.sentence(step))
        adjustment = self.health.adjustment(found)
        if adjustment is not None:
            self.practice.lr_scale *= adjustment.lr_scale
            self.practice.clip_scale *= adjustment.clip_scale
            journal.adjusted(step, adjustment)
            self.say(
                f"Step {step}: health.action=adjust: learning rate × {adjustment.lr_scale:.3g}, "
                f"clip × {adjustment.clip_scale:.3g} from here on."
            )
        fatal = self.health.should_stop(found)
        if self.settings.hacking.action == "stop" and self._hacked is not None:
            fatal = self._hacked
        if fatal is not None:
            journal.stopped(step, fatal)
            raise UserError(f"{fatal.sentence(step)} The run stops here. {self._last_good()}")

    def _last_good(self) -> str:
        found, _ = self.checkpoints.newest()
        return f"The last good checkpoint is '{found}'." if found is not None else "There is no checkpoint yet."

    # -- stopping ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """Ctrl-C once: finish the step, save, stop. Twice: stop now."""
        loop = asyncio.get_running_loop()

        def ask() -> None:
            if self._asked_to_stop:
                signal.raise_signal(signal.SIGKILL)
            self._asked_to_stop = True
            self.say("Stopping after this step, with a checkpoint; once more to stop at once.")

        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, ask)
        except (RuntimeError, NotImplementedError, ValueError):  # not the main thread: somebody else listens
            yield
            return
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
