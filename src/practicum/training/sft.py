"""Imitation: cross-entropy on the tokens a demonstrator wrote."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from practicum.errors import UserError
from practicum.training.apprentice import Apprentice
from practicum.training.batch import Sample
from practicum.training.learner import Objective, OptimizerSettings
from practicum.training.samples import imitation_samples
from practicum.training.schedule import learning_rate
from practicum.trajectory import Trajectory


@dataclass(frozen=True)
class SFTSettings:
    """How to imitate. `check_every` steps, `imitate` may be told that the apprentice is good enough."""

    epochs: int = 1
    batch_size: int = 8
    lr: float = 2e-3
    warmup: int = 50
    schedule: str = "cosine"
    min_lr_ratio: float = 0.1
    check_every: int = 50
    seed: int = 0
    optimizer: OptimizerSettings = field(default_factory=lambda: OptimizerSettings(weight_decay=0.01))


def planned_steps(samples: int, settings: SFTSettings) -> int:
    return settings.epochs * -(-samples // settings.batch_size)


async def imitate(
    apprentice: Apprentice,
    demonstrations: Sequence[Trajectory],
    settings: SFTSettings,
    on_step: Callable[[int, int, dict[str, float]], None] | None = None,
    good_enough: Callable[[], Awaitable[bool]] | None = None,
) -> int:
    """Train on demonstrations and return the steps taken; `on_step(step, total, metrics)` hears of every update."""
    samples = imitation_samples(demonstrations)
    if not samples:
        raise UserError("There is no scored demonstration to imitate; collect some with `practicum collect` first.")
    total = planned_steps(len(samples), settings)
    apprentice.start_stage(settings.optimizer)
    objective = Objective("ce")
    rng = random.Random(f"sft/{settings.seed}")
    step = 0
    for _ in range(settings.epochs):
        order = list(range(len(samples)))
        rng.shuffle(order)
        for start in range(0, len(order), settings.batch_size):
            batch: list[Sample] = [samples[i] for i in order[start : start + settings.batch_size]]
            count = float(sum(int(sample.mask.sum()) for sample in batch))
            lr = learning_rate(step, total, settings.lr, settings.schedule, settings.warmup, settings.min_lr_ratio)
            metrics = apprentice.update(batch, count, objective, lr)
            step += 1
            if on_step is not None:
                on_step(step, total, metrics)
            if good_enough is not None and step % settings.check_every == 0 and await good_enough():
                return step
    return step
