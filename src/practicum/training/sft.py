"""Imitation: cross-entropy on the tokens a demonstrator wrote."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from practicum.errors import UserError
from practicum.training.lr_schedule import learning_rate
from practicum.training.micro_batches import Sample
from practicum.training.objective import Objective
from practicum.training.optimizer import OptimizerSettings
from practicum.training.samples import sft_samples
from practicum.training.trainable_policy import TrainablePolicy
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

    def __post_init__(self) -> None:
        learning_rate(0, 1, self.lr, self.schedule)  # a misspelt schedule is an error now, not later
        if self.epochs < 1 or self.batch_size < 1:
            raise UserError("Epochs and batch sizes must be at least 1.")


def fitting(samples: Sequence[Sample], window: int) -> list[Sample]:
    """The samples that a model's window holds; from a longer one it cannot learn. Says how many those are."""
    found = [sample for sample in samples if len(sample.ids) <= window]
    tell_left_out("demonstrations", len(samples) - len(found), len(samples), window)
    return found


def tell_left_out(what: str, left_out: int, count: int, window: int) -> None:
    """Say how many are longer than a model's window; that none is left is an error."""
    told = f"{left_out} of {count} {what} are longer than the model's window ({window} tokens)"
    if left_out and left_out == count:
        raise UserError(f"{told}: nothing is left to learn from; show shorter ones.")
    if left_out:
        print(f"{told} and are left out.", flush=True)


def planned_steps(samples: int, settings: SFTSettings) -> int:
    return settings.epochs * -(-samples // settings.batch_size)


def plan_batches(samples: int, settings: SFTSettings) -> list[list[int]]:
    """Which samples every update of a run learns from, by number."""
    rng = random.Random(f"sft/{settings.seed}")
    planned = []
    for _ in range(settings.epochs):
        order = list(range(samples))
        rng.shuffle(order)
        planned += [order[start : start + settings.batch_size] for start in range(0, samples, settings.batch_size)]
    return planned


def update(
    policy: TrainablePolicy,
    samples: Sequence[Sample],
    batches: Sequence[Sequence[int]],
    number: int,
    settings: SFTSettings,
) -> dict[str, float]:
    """Update `number` of a planned run."""
    batch = [samples[place] for place in batches[number]]
    count = float(sum(int(sample.mask.sum()) for sample in batch))
    lr = learning_rate(number, len(batches), settings.lr, settings.schedule, settings.warmup, settings.min_lr_ratio)
    return policy.update(batch, count, Objective("ce"), lr)


def evaluation_loss(policy: TrainablePolicy, samples: Sequence[Sample]) -> dict[str, float]:
    """Cross-entropy and perplexity of the demonstrator's tokens, over all of them."""
    found = policy.learner.logprobs(samples)
    count = sum(len(values) for values in found)
    loss = -sum(float(values.double().sum()) for values in found) / count
    return {"eval/loss": loss, "eval/perplexity": math.exp(min(50.0, loss)), "eval/tokens": float(count)}


async def train_sft(
    policy: TrainablePolicy,
    demonstrations: Sequence[Trajectory],
    settings: SFTSettings,
    on_step: Callable[[int, int, dict[str, float]], None] | None = None,
    good_enough: Callable[[], Awaitable[bool]] | None = None,
) -> int:
    """Train on demonstrations and return the steps taken; `on_step(step, total, metrics)` hears of every update."""
    samples = sft_samples(demonstrations)
    if not samples:
        raise UserError("There is no scored demonstration to imitate; collect some with `practicum collect` first.")
    policy.reset_optimizer(settings.optimizer)
    batches = plan_batches(len(samples), settings)
    for number in range(len(batches)):
        metrics = update(policy, samples, batches, number, settings)
        if on_step is not None:
            on_step(number + 1, len(batches), metrics)
        if good_enough is not None and (number + 1) % settings.check_every == 0 and await good_enough():
            return number + 1
    return len(batches)
