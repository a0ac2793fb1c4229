"""The training loop: numbered steps with validation, metrics and checkpoints, stopped cleanly and resumed exactly.

Reinforcement learning, SFT and DPO share it; what differs is the `Trainer` that it steps. `metrics.jsonl` and the
checkpoints hold nothing that depends on the clock, so a run that was killed and resumed leaves the same bytes as one
that was not. Times and memory are in `timing.jsonl`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from practicum.config.health import HealthSettings, RewardHackingSettings
from practicum.data.run_folder import CHECKPOINT_NAME, GROUPS, LAST, METRICS, MODEL, TIMING, TOP, FolderLock
from practicum.errors import UserError
from practicum.training import checkpoint
from practicum.training.checkpoint import ABANDONED, Checkpoints
from practicum.training.follower_rank import Leader
from practicum.training.monitor.health import HEALTH_FILE, HealthFinding, HealthLog, HealthMonitor
from practicum.training.monitor.log_file import LogFile
from practicum.training.monitor.loggers import Logger, MetricsFile, memory_metrics
from practicum.training.monitor.reward_hacking import RewardHackingMonitor
from practicum.training.monitor.supervised_health import SupervisedMonitor
from practicum.training.rollout_source import EpisodeSaver
from practicum.training.settings import LOSS_METRICS, RunSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.training.trainer import Trainer
from practicum.training.validation_results import VALIDATION, check_required_figures, write_validation
from practicum.trajectory import Trajectory

if TYPE_CHECKING:
    from practicum.training.rl_trainer import RLTrainer

CLOCK_PREFIXES = ("timing/", "memory/")
"""Metrics in which two equal runs differ."""


@dataclass
class TrainState:
    """How far a run is; with the trainer's own state, all that a checkpoint needs besides tensors."""

    step: int = 0
    best_value: float | None = None
    best_step: int | None = None
    stale_validations: int = 0
    """Validations since the best one."""
    finished: str | None = None
    """Why the run ended before its last step."""


class Run:
    """One run in one folder; without a folder nothing is written."""

    def __init__(
        self,
        folder: Path | None,
        trainer: Trainer,
        settings: RunSettings,
        monitor: RunMonitor | SupervisedMonitor | None = None,
        make_loggers: Callable[[bool], Sequence[Logger]] = lambda resumed: (),
        say: Callable[[str], None] = print,
        on_step: Callable[[int, dict[str, float]], None] | None = None,
        lock: FolderLock | None = None,
    ) -> None:
        """`lock` is the folder's, if it was taken before; the run releases it at its end."""
        self._folder = folder
        self.trainer = trainer
        self.settings = settings
        self.monitor = monitor
        self.say = say
        self.on_step = on_step
        self.model_folder = None if folder is None else folder / MODEL
        """Where the result is written to."""
        self.checkpoints = None if folder is None else Checkpoints(folder, settings.save_total_limit)
        self.state = TrainState()
        self.leader = Leader(trainer) if dist.is_initialized() else None
        """Tells the other ranks what to do; None: there are none."""
        self.resumed = False
        self._unvalidated: dict[str, Any] | None = None
        """The metrics and findings of a step whose validation was cut short."""
        self._make_loggers = make_loggers
        self._lock = FolderLock(folder) if lock is None and folder is not None else lock
        if self._lock is not None:
            self._lock.delete_unfinished(TOP, GROUPS, VALIDATION)
        self._signals = StopSignals(self._announce_stop, trainer.stops_by_exception)
        if trainer.gives_up_rollouts:
            trainer.wait_for_rollouts = self._signals.unless_stopped

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise ValueError("this run has no folder")
        return self._folder

    @property
    def policy(self) -> TrainablePolicy:
        return self.trainer.policy

    def request_stop(self) -> None:
        """Stop after the current step, with a checkpoint, as after Ctrl-C."""
        self._signals.requested = True

    # -- checkpoints ------------------------------------------------------------------------

    def resume(self) -> None:
        """Load the checkpoint to continue from, by `resume_mode`."""
        mode, path = self.settings.resume_mode, self.settings.resume_from_path
        if self._folder is None or self.checkpoints is None:
            return
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
            own = Path(path).resolve().parent == self.folder.resolve()
            if abandoned := self.checkpoints.abandon_after(self.state.step if own else -1):
                self.say(f"The checkpoints of steps {', '.join(map(str, abandoned))} are kept as '{ABANDONED}…'.")
            if own:
                self.checkpoints.complete(self.state.step, self.state.best_step)
            return
        newest, complaints = self.checkpoints.newest()
        for complaint in complaints:
            self.say(complaint)
        metrics = self.folder / METRICS
        if newest is not None:
            self._restore(newest)
            self.checkpoints.complete(self.state.step, self.state.best_step)
        elif metrics.is_file() and metrics.stat().st_size:
            self.say(f"'{self.folder}' holds no checkpoint to go on from: the run begins anew.")

    def _restore(self, path: Path) -> None:
        state = checkpoint.load(path, self.policy, self.trainer.critic)
        self.trainer.restore(state)
        if self.monitor is not None:
            self.monitor.restore(state)
        self.state = TrainState(**state["standing"])
        self._unvalidated = state.get("unvalidated")
        self.resumed = True
        self.say(f"Resumed at step {self.state.step} from '{path}'.")

    def _save(self) -> None:
        if self.checkpoints is None:
            return
        if self.leader is not None:
            self.leader.prepare_save()
        state = self._checkpoint_state()
        self.checkpoints.save(self.state.step, self.policy, self.trainer.critic, state, best=self.state.best_step)

    def _checkpoint_state(self) -> dict[str, Any]:
        """All that the next step depends on besides tensors, as plain JSON."""
        own = vars(self.state)
        if self.settings.early_stopping_patience is None:
            own = {name: own[name] for name in ("step", "best_value", "best_step")}
        return {**self.trainer.state(), **(self.monitor.state() if self.monitor is not None else {}), "standing": own}

    def _last_good(self) -> str:
        newest = self.checkpoints.newest()[0] if self.checkpoints is not None else None
        return f"The last good checkpoint is '{newest}'." if newest is not None else "There is no checkpoint yet."

    # -- the loop ---------------------------------------------------------------------------

    async def train(self) -> TrainState:
        """Train from the current step to the end. SIGTERM ends it within seconds, without the unfinished step."""
        self._signals.stopped, self._signals.terminated = asyncio.Event(), asyncio.Event()
        self._signals.loop = asyncio.get_running_loop()
        try:
            if self.leader is not None:
                self.leader.share_state(self.state.step)
            return await self._train()
        except Terminated:
            raise KeyboardInterrupt from None
        finally:
            try:
                if self.leader is not None:
                    self.leader.end_followers()
                await self.trainer.close()
            finally:
                if self._lock is not None:
                    self._lock.release()

    async def _train(self) -> TrainState:
        state, settings = self.state, self.settings
        if self._unvalidated is None and (state.step >= settings.total_training_steps or state.finished is not None):
            self.say(f"Nothing to do: this run has {state.step} steps ({state.finished or 'all it was asked for'}).")
        else:
            with self._log() as log, self._signals.installed():
                if self._unvalidated is not None:
                    await self._finish_unvalidated(log)
                if not self.resumed and settings.val_before_train:
                    validated = await self._validate(0)
                    if validated:
                        log.write(0, validated)
                    if settings.keep_best and state.best_step == 0:
                        self._save()  # no later validation may be better
                while (
                    state.step < settings.total_training_steps
                    and state.finished is None
                    and not self._signals.requested
                ):
                    await self._step(state.step, log)
                if self._signals.requested and state.finished is None:
                    if settings.save_on_stop:
                        self._save()
                    raise KeyboardInterrupt
        if settings.keep_best:
            self._write_models()
        return state

    async def _step(self, step: int, log: RunLog) -> None:
        settings, done = self.settings, step + 1
        last = done == settings.total_training_steps
        interruptible, started = self.trainer.stops_in_rollout, time.perf_counter()
        before = json.dumps(self._checkpoint_state()) if interruptible else ""
        if not self.trainer.keeps_engine_caches:
            self.policy.clear_engine_caches()
        scales = {"lr_scale": self.trainer.lr_scale, "clip_scale": self.trainer.clip_scale}
        try:
            with self._on_all_ranks("step", step=step, **scales):
                work = self.trainer.step(step)
                metrics, episodes = await (self._signals.unless_terminated(work) if interruptible else work)
        except FloatingPointError as error:
            raise UserError(f"Step {done}: {error}. {self._last_good()}") from error
        except Terminated:  # the weights are still those of the step before
            if not interruptible:  # the state has the episodes that have ended
                if settings.save_on_stop:
                    self._save()
            elif step and settings.save_on_stop and self.checkpoints is not None:
                best = self.state.best_step
                self.checkpoints.save(step, self.policy, self.trainer.critic, json.loads(before), best)
            raise
        metrics.setdefault("timing/step", time.perf_counter() - started)
        if self.monitor is not None:
            self.monitor.observe(done, metrics, episodes)
        if settings.test_freq > 0 and (done % settings.test_freq == 0 or last):
            try:
                metrics |= await self._validate(done)
            except Terminated:
                self._save_unvalidated(done, metrics)
                raise
            if isinstance(self.monitor, SupervisedMonitor):
                self.monitor.observe_validation(metrics)
        self._finish_step(done, metrics, log)

    def _on_all_ranks(self, command: str, **values: Any) -> contextlib.AbstractContextManager[None]:
        """Let the other ranks, if there are any, do what the block does."""
        return contextlib.nullcontext() if self.leader is None else self.leader.announce(command, **values)

    def _finish_step(self, done: int, metrics: dict[str, float], log: RunLog) -> None:
        """Write the metrics of a step, act on what was found, and save where that is due."""
        settings, state = self.settings, self.state
        last = done == settings.total_training_steps
        log.write(done, metrics)
        state.step = done
        if self.on_step is not None:
            self.on_step(done, metrics)
        self._check_health(done)
        self._check_finished(done)
        saves = settings.save_freq > 0
        due = saves and (done % settings.save_freq == 0 or last or state.finished is not None)
        if due or (state.best_step == done and not last and (saves or settings.keep_best)):
            self._save()

    def _save_unvalidated(self, step: int, metrics: dict[str, float]) -> None:
        """Save a step whose validation was cut short; the resumed run validates it first."""
        if not self.settings.save_on_stop or self.checkpoints is None:
            return
        self.state.step = step
        findings = self.monitor.pending() if isinstance(self.monitor, RunMonitor) else None
        values = [[name, repr(value)] for name, value in metrics.items()]  # in their order; and JSON has no NaN
        state = {**self._checkpoint_state(), "unvalidated": {"metrics": values, "findings": findings}}
        self.checkpoints.save(step, self.policy, self.trainer.critic, state, self.state.best_step)

    async def _finish_unvalidated(self, log: RunLog) -> None:
        """Validate the step that the run was stopped in, and finish it."""
        assert self._unvalidated is not None
        step, metrics = self.state.step, {k: float(v) for k, v in self._unvalidated["metrics"]}
        if isinstance(self.monitor, RunMonitor):
            self.monitor.restore_pending(self._unvalidated["findings"])
        try:
            metrics |= await self._validate(step)
        except Terminated:
            self._save_unvalidated(step, metrics)
            raise
        self._unvalidated = None
        self._finish_step(step, metrics, log)

    async def _validate(self, step: int) -> dict[str, float]:
        """The metrics of a validation; the best one so far is noted."""
        with self._on_all_ranks("validate"):
            work = self.trainer.validate()
            if self.trainer.gives_up_rollouts:  # it waits for them
                validation = await self._signals.unless_stopped(work)
            else:
                validation = await (self._signals.unless_terminated(work) if self.trainer.stops_in_rollout else work)
        if validation is None:
            return {}
        if validation.problem is not None:
            self.say(f"Step {step}: {validation.problem}; it does not count.")
            return validation.metrics
        if validation.result is not None and self._folder is not None:
            write_validation(self._folder, step, validation.result, validation.episodes)
        if step == 0 and validation.result is not None:
            check_required_figures(validation.result, self.settings.required_figures)
        metric, state = self.settings.best_metric, self.state
        value, best = validation.metrics[metric], state.best_value
        if best is None or (value < best if metric in LOSS_METRICS else value > best):
            state.best_value, state.best_step, state.stale_validations = value, step, 0
        else:
            state.stale_validations += 1
            if value == best:  # of two that are as good, the one that was trained longer
                state.best_step = step
        return validation.metrics

    def _check_health(self, step: int) -> None:
        fatal = self.monitor.act(step) if self.monitor is not None else None
        if fatal is not None:
            raise UserError(f"{fatal.sentence(step)} The run stops here. {self._last_good()}")

    def _check_finished(self, step: int) -> None:
        state = self.state
        if self.settings.early_stopping_patience and state.stale_validations >= self.settings.early_stopping_patience:
            state.finished = f"stopped early: {state.stale_validations} validations without a new best"
            self.say(f"Step {step}: {state.finished}; the best was step {state.best_step}.")

    def _write_models(self) -> None:
        """Write the last model; then load the weights of the best validation and write that model."""
        best, target = self.state.best_step, self.model_folder
        if self.checkpoints is None or target is None:
            raise ValueError("a run that keeps its best weights has a folder")
        if self.leader is not None:
            self.leader.prepare_save()
        self.policy.save(self.folder / LAST)
        if best is not None and best != self.state.step:
            checkpoint.load(self.checkpoints.path(best), self.policy, None)
            for model in self.policy.models:
                model.set_version(model.version + 1)  # what the engine has cached is of other weights
            self.say(
                f"The best weights by {self.settings.best_metric} are those of step {best}: they are the result in "
                f"'{target}'; those of step {self.state.step} are in '{self.folder / LAST}'."
            )
        self.policy.save(target)

    # -- files and signals ------------------------------------------------------------------

    @contextlib.contextmanager
    def _log(self) -> Iterator[RunLog]:
        """The metrics files and loggers, opened for the rest of the run."""
        loggers = list(self._make_loggers(self.resumed))
        keep_to = self.state.step if self.resumed else None
        if self.monitor is not None:
            self.monitor.open(keep_to)  # before the metrics: who sees those finds its file
        log = RunLog(self._folder, keep_to, loggers)
        try:
            yield log
        except BaseException as error:
            log.failed(error)
            raise
        finally:
            if self.monitor is not None:
                self.monitor.close()
            log.close()

    def _announce_stop(self) -> None:
        saving = ", with a checkpoint" if self.settings.save_on_stop and self._folder is not None else ""
        when = "without the unfinished rollouts" if self.trainer.gives_up_rollouts else "after this step"
        self.say(f"Stopping {when}{saving}; once more to stop at once.")


class RunLog:
    """Writes the metrics of a run: `metrics.jsonl`, `timing.jsonl`, and the loggers."""

    def __init__(self, folder: Path | None, keep_to: int | None, loggers: Sequence[Logger]) -> None:
        """With `keep_to`, files are continued after the lines of that step; without, they begin anew."""
        self.folder, self.keep_to, self.loggers = folder, keep_to, loggers
        self.metrics = None if folder is None else MetricsFile(folder / METRICS, keep_to)
        self._timing: MetricsFile | None = None

    def write(self, step: int, values: dict[str, float]) -> None:
        timing = {name: value for name, value in values.items() if name.startswith(CLOCK_PREFIXES)}
        if self.metrics is not None:
            self.metrics.write(step, {name: value for name, value in values.items() if name not in timing})
        if timing and self.folder is not None:
            if self._timing is None:
                self._timing = MetricsFile(self.folder / TIMING, self.keep_to)
            self._timing.write(step, timing)
        for logger in self.loggers:
            logger.write(step, values)

    def failed(self, error: BaseException) -> None:
        """Write why the run stops into its log file."""
        for logger in self.loggers:
            if isinstance(logger, LogFile):
                logger.failed(error)

    def close(self) -> None:
        for file in (self.metrics, self._timing, *self.loggers):
            if file is not None:
                file.close()


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
        self.saver = EpisodeSaver(folder, trainer.settings.adv_estimator, trainer.roles)
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

    def pending(self) -> dict[str, Any]:
        """The findings of a step that is not finished, as plain JSON."""
        index = None if self._hacking_finding is None else self._findings.index(self._hacking_finding)
        return {"findings": [asdict(finding) for finding in self._findings], "hacking": index}

    def restore_pending(self, state: dict[str, Any]) -> None:
        self._findings = [HealthFinding(**values) for values in state["findings"]]
        self._hacking_finding = None if state["hacking"] is None else self._findings[state["hacking"]]

    def open(self, keep_to: int | None) -> None:
        """Begin a new `health.jsonl`; with `keep_to`, continue it after the lines of that step."""
        self._log = HealthLog(self.folder / HEALTH_FILE, keep_to)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def observe(self, step: int, metrics: dict[str, float], episodes: Sequence[Trajectory]) -> None:
        """Look at a step that is done and add to its metrics; what follows from it comes with `act`."""
        metrics |= memory_metrics()
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


SIGNALS = (signal.SIGINT, signal.SIGTERM)
CANCEL_SECONDS = 5.0
"""Seconds to wait for cancelled episodes to end."""
T = TypeVar("T")


class Terminated(Exception):
    """A signal came while something ran that can be cancelled."""


class StopSignals:
    """Notes the first signal as a request; the second one ends the step or the process."""

    def __init__(self, on_request: Callable[[], None], by_exception: bool) -> None:
        """The second signal raises KeyboardInterrupt where `by_exception` says so, and kills the process elsewhere."""
        self.requested = False
        self.stopped: asyncio.Event | None = None
        """Set by any of the signals, in the event loop `loop`."""
        self.terminated: asyncio.Event | None = None
        """Set by SIGTERM."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._on_request, self._by_exception = on_request, by_exception

    async def unless_terminated(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something that can be cancelled without harm; after SIGTERM it is cancelled and Terminated raised."""
        return await self._unless(self.terminated, work)

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something that can be cancelled without harm; after any of the signals it is cancelled."""
        return await self._unless(self.stopped, work)

    async def _unless(self, event: asyncio.Event | None, work: Coroutine[Any, Any, T]) -> T:
        if event is None:
            return await work
        task, stop = asyncio.create_task(work), asyncio.create_task(event.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_SECONDS)
            raise Terminated
        finally:
            stop.cancel()
            task.cancel()

    def _handle(self, signal_number: int, *_: object) -> None:
        if self.requested:
            if self._by_exception:
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGKILL)
        self.requested = True
        events = [self.stopped, self.terminated] if signal_number == signal.SIGTERM else [self.stopped]
        for event in events:
            if self.loop is not None and event is not None:
                self.loop.call_soon_threadsafe(event.set)
        with contextlib.suppress(RuntimeError):  # it may interrupt the printing of another line
            self._on_request()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside this block; the handlers from before are put back after it."""
        before = {}
        with contextlib.suppress(ValueError):  # not the main thread: signals are handled elsewhere
            before = {signal_number: signal.signal(signal_number, self._handle) for signal_number in SIGNALS}
        try:
            yield
        finally:
            for signal_number, handler in before.items():
                signal.signal(signal_number, handler)
