"""A supervised stage: numbered updates, evaluated and saved on the way, resumed to the byte, the best one kept.

What update N does depends on N and on the weights alone, so a stage that was killed goes on from its last
checkpoint as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import hashlib
import signal
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from practicum.errors import UserError
from practicum.training import checkpoint
from practicum.training.checkpoint import Checkpoints
from practicum.training.micro_batches import Sample
from practicum.training.monitor.metrics import MetricsFile
from practicum.training.trainable_policy import TrainablePolicy

METRIC = "eval/loss"


@dataclass(frozen=True)
class SupervisedSettings:
    """How often to save and to evaluate, in updates.

    `eval_steps` of 0 and below: only at the end. `save_steps` of 0 and below: only what an evaluation finds best.
    """

    steps: int
    save_steps: int = 0
    eval_steps: int = 0
    save_total_limit: int | None = None


@dataclass
class SupervisedState:
    """Where a stage stands."""

    step: int = 0
    best_value: float | None = None
    best_step: int | None = None


class SupervisedTrainer:
    """One stage in one folder. `data` is the fingerprint of what it learns from."""

    def __init__(
        self,
        folder: Path,
        policy: TrainablePolicy,
        settings: SupervisedSettings,
        update: Callable[[int], dict[str, float]],
        evaluate: Callable[[], dict[str, float]] | None = None,
        on_step: Callable[[int, dict[str, float]], None] | None = None,
        say: Callable[[str], None] = print,
        data: str | None = None,
    ) -> None:
        self.folder, self.policy, self.settings = folder, policy, settings
        self.update, self.evaluate, self.on_step, self.say = update, evaluate, on_step, say
        self.checkpoints = Checkpoints(folder, settings.save_total_limit)
        self.standing = SupervisedState()
        self.data = data
        self._asked_to_stop = False

    def resume(self) -> None:
        """Go on from the newest sound checkpoint, if there is one."""
        found, complaints = self.checkpoints.newest()
        for complaint in complaints:
            self.say(complaint)
        if found is not None:
            state = checkpoint.load(found, self.policy, None)
            if state.get("data") not in (None, self.data):  # checkpoints of earlier versions do not say
                raise UserError(
                    f"What is to be learnt from is not what the run in '{self.folder}' began with; "
                    "put that back, or choose another output_dir."
                )
            self.standing = SupervisedState(**state["standing"])
            self.policy.set_version(self.standing.step)
            self.policy.learner.version = self.standing.step
            self.say(f"Resumed at step {self.standing.step} from '{found}'.")

    def run(self) -> SupervisedState:
        """To the end; the best weights by evaluation are left in the apprentice and in `model/`."""
        settings, standing = self.settings, self.standing
        metrics = MetricsFile(self.folder / "metrics.jsonl", keep_to=standing.step if standing.step else None)
        try:
            with self._signals():
                while standing.step < settings.steps and not self._asked_to_stop:
                    self._one_update(standing.step, metrics)
                if self._asked_to_stop:
                    self._save()
                    raise KeyboardInterrupt
        finally:
            metrics.close()
        if standing.best_step is not None and standing.best_step != standing.step:
            checkpoint.load(self.checkpoints.path(standing.best_step), self.policy, None)
            self.say(f"The best weights by {METRIC} are those of step {standing.best_step}; they are the result.")
        self.policy.save(self.folder / "model")
        return standing

    def _one_update(self, number: int, metrics: MetricsFile) -> None:
        settings, standing = self.settings, self.standing
        try:
            values = self.update(number)
        except FloatingPointError as error:
            raise UserError(f"Step {number + 1}: {error}.") from error
        done, last = number + 1, number + 1 == settings.steps
        if self.evaluate is not None and (last or _due(done, settings.eval_steps)):
            values |= self.evaluate()
            self._remember(done, values[METRIC])
        metrics.write(done, values)
        standing.step = done
        if self.on_step is not None:
            self.on_step(done, values)
        due = settings.save_steps > 0 and (last or _due(done, settings.save_steps))
        if due or (standing.best_step == done and not last):  # the last weights are at hand
            self._save()

    def _remember(self, step: int, value: float) -> None:
        if self.standing.best_value is None or value < self.standing.best_value:
            self.standing.best_value, self.standing.best_step = value, step

    def _save(self) -> None:
        state = {"standing": vars(self.standing), "data": self.data}
        self.checkpoints.save(self.standing.step, self.policy, None, state, best=self.standing.best_step)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C once: finish the update, save, stop. Twice: stop now."""

        def ask(*_: object) -> None:
            if self._asked_to_stop:
                raise KeyboardInterrupt
            self._asked_to_stop = True
            with contextlib.suppress(RuntimeError):  # it may come in the middle of another line
                self.say("Stopping after this update, with a checkpoint; once more to stop at once.")

        before = {}
        with contextlib.suppress(ValueError):  # not the main thread: somebody else listens
            before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def fingerprint(samples: Iterable[Sample]) -> str:
    """Names samples by what they teach: ids, and which of them are learnt."""
    running = hashlib.sha256()
    for sample in samples:
        running.update(len(sample.ids).to_bytes(8))
        running.update(array("q", sample.ids))
        running.update(sample.mask.tobytes())
    return running.hexdigest()[:16]


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
