"""A supervised stage: numbered updates, evaluated and saved on the way, resumed to the byte, the best one kept.

What update N does depends on N and on the weights alone, so a stage that was killed goes on from its last
checkpoint as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from practicum.errors import UserError
from practicum.metrics import MetricsFile
from practicum.training import checkpoint
from practicum.training.apprentice import Apprentice
from practicum.training.checkpoint import Checkpoints

METRIC = "eval/loss"


@dataclass(frozen=True)
class StageSettings:
    """How often to save and to evaluate (updates; 0 and below: only at the end)."""

    steps: int
    save_steps: int = 0
    eval_steps: int = 0
    save_total_limit: int | None = None


@dataclass
class Progressed:
    """Where a stage stands."""

    step: int = 0
    best_value: float | None = None
    best_step: int | None = None


class Stage:
    """One stage in one folder."""

    def __init__(
        self,
        folder: Path,
        apprentice: Apprentice,
        settings: StageSettings,
        update: Callable[[int], dict[str, float]],
        evaluate: Callable[[], dict[str, float]] | None = None,
        on_step: Callable[[int, dict[str, float]], None] | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.folder, self.apprentice, self.settings = folder, apprentice, settings
        self.update, self.evaluate, self.on_step, self.say = update, evaluate, on_step, say
        self.checkpoints = Checkpoints(folder, settings.save_total_limit)
        self.standing = Progressed()

    def resume(self) -> None:
        """Go on from the newest sound checkpoint, if there is one."""
        found, complaints = self.checkpoints.newest()
        for complaint in complaints:
            self.say(complaint)
        if found is not None:
            state = checkpoint.load(found, self.apprentice, None)
            self.standing = Progressed(**state["standing"])
            self.apprentice.set_version(self.standing.step)
            self.apprentice.learner.version = self.standing.step
            self.say(f"Resumed at step {self.standing.step} from '{found}'.")

    def run(self) -> Progressed:
        """To the end; the best weights by evaluation are left in the apprentice and in `model/`."""
        settings, standing = self.settings, self.standing
        metrics = MetricsFile(self.folder / "metrics.jsonl", keep_to=standing.step if standing.step else None)
        try:
            while standing.step < settings.steps:
                number = standing.step
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
                best = self.evaluate is not None and standing.best_step == done and settings.save_steps > 0
                if settings.save_steps > 0 and (last or _due(done, settings.save_steps) or best):
                    self._save()
        finally:
            metrics.close()
        if standing.best_step is not None and standing.best_step != standing.step and settings.save_steps > 0:
            checkpoint.load(self.checkpoints.path(standing.best_step), self.apprentice, None)
            self.say(f"The best weights by {METRIC} are those of step {standing.best_step}; they are the result.")
        self.apprentice.save(self.folder / "model")
        return standing

    def _remember(self, step: int, value: float) -> None:
        if self.standing.best_value is None or value < self.standing.best_value:
            self.standing.best_value, self.standing.best_step = value, step

    def _save(self) -> None:
        state = {"standing": vars(self.standing)}
        self.checkpoints.save(self.standing.step, self.apprentice, None, state, best=self.standing.best_step)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
