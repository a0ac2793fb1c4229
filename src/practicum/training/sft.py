"""Supervised fine-tuning: cross-entropy on the tokens that a demonstrator wrote."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from practicum.config.fields import at_least, check_fields, default_of
from practicum.config.sft import SFTTrainingConfig
from practicum.errors import UserError
from practicum.training.learner import learning_rate
from practicum.training.micro_batches import Sample, sft_samples
from practicum.training.objective import CROSS_ENTROPY
from practicum.training.run import Run, TrainState
from practicum.training.settings import RunSettings
from practicum.training.supervised import SupervisedTrainer, UpdateSettings, fingerprint_samples
from practicum.training.trainable_policy import TrainablePolicy
from practicum.training.trainer import Evaluated, Validation, panel_validation
from practicum.trajectory import Trajectory


@dataclass(frozen=True)
class SFTSettings(UpdateSettings):
    """How to train on demonstrations, under the names of the configuration's keys.

    One update is over `batch_size * gradient_accumulation_steps` sequences. Every `check_every` updates and at the end,
    `train_sft` scores the policy on validation tasks.
    """

    num_epochs: int = default_of(SFTTrainingConfig, "num_epochs")
    batch_size: int = default_of(SFTTrainingConfig, "batch_size")
    gradient_accumulation_steps: int = default_of(SFTTrainingConfig, "gradient_accumulation_steps")
    learning_rate: float = default_of(SFTTrainingConfig, "learning_rate")
    warmup_steps: int = default_of(SFTTrainingConfig, "warmup_steps")
    weight_decay: float = default_of(SFTTrainingConfig, "weight_decay")
    max_grad_norm: float = default_of(SFTTrainingConfig, "max_grad_norm")
    scheduler_type: str = default_of(SFTTrainingConfig, "scheduler_type")
    min_lr_ratio: float = default_of(SFTTrainingConfig, "min_lr_ratio")
    check_every: int = at_least(1, 50)
    seed: int = default_of(SFTTrainingConfig, "seed")

    def __post_init__(self) -> None:
        check_fields(self, "training.")
        learning_rate(0, 1, self.learning_rate, self.scheduler_type)  # a misspelt schedule is an error now, not later


class SFTTrainer(SupervisedTrainer):
    """Trains a policy on samples, and validates it: by its score from `evaluate`, or by its loss on `eval_samples`."""

    def __init__(
        self,
        policy: TrainablePolicy,
        samples: Sequence[Sample],
        settings: SFTSettings,
        eval_samples: Sequence[Sample] = (),
        evaluate: Callable[[], Awaitable[Evaluated]] | None = None,
        tasks: Sequence[str] | None = None,
    ) -> None:
        """`tasks` names the task of every sample, to learn the samples of a task together."""
        policy.reset_optimizer(settings.optimizer)
        self.samples, self.eval_samples, self.settings = samples, eval_samples, settings
        self.evaluate = evaluate
        self.batches = plan_batches(len(samples), settings, tasks)
        super().__init__(policy, len(self.batches), fingerprint_samples([*samples, *eval_samples]))

    def update(self, step: int) -> dict[str, float]:
        return sft_update(self.policy, self.samples, self.batches, step, self.settings)

    async def validate(self) -> Validation | None:
        if self.evaluate is not None:
            return panel_validation(await self.evaluate())
        if not self.eval_samples:
            return None
        return Validation(evaluation_loss(self.policy, self.eval_samples))


def without_too_long(samples: Sequence[Sample], context: int, log: Callable[[str], None] = print) -> list[Sample]:
    """The samples of at most `context` tokens; `log` gets the number of longer ones."""
    fitting = [sample for sample in samples if len(sample.ids) <= context]
    report_too_long("demonstrations", len(samples) - len(fitting), len(samples), context, log)
    return fitting


def report_too_long(kind: str, num_too_long: int, count: int, context: int, log: Callable[[str], None] = print) -> None:
    """Log how many are longer than a model's context; raise when none is left."""
    sentence = f"{num_too_long} of {count} {kind} are longer than the model's window ({context} tokens)"
    if num_too_long and num_too_long == count:
        raise UserError(f"{sentence}: nothing is left to learn from; show shorter ones.")
    if num_too_long:
        log(f"{sentence} and are left out.")


def planned_steps(num_samples: int, settings: SFTSettings) -> int:
    """The number of updates over all epochs."""
    return settings.num_epochs * -(-num_samples // settings.update_size)


def plan_batches(num_samples: int, settings: SFTSettings, tasks: Sequence[str] | None = None) -> list[list[int]]:
    """For every update of a run the indices of its samples, shuffled; with `tasks` the samples of a task in a row."""
    rng = random.Random(f"sft/{settings.seed}")
    units: dict[str | int, list[int]] = {}
    for index in range(num_samples):
        units.setdefault(index if tasks is None else tasks[index], []).append(index)
    batches = []
    for _ in range(settings.num_epochs):
        shuffled = list(units.values())
        rng.shuffle(shuffled)
        order = [index for unit in shuffled for index in unit]
        batches += [
            order[start : start + settings.update_size] for start in range(0, num_samples, settings.update_size)
        ]
    return batches


def sft_update(
    policy: TrainablePolicy,
    samples: Sequence[Sample],
    batches: Sequence[Sequence[int]],
    step: int,
    settings: SFTSettings,
) -> dict[str, float]:
    """Do update number `step` of a planned run; returns its metrics."""
    batch = [samples[index] for index in batches[step]]
    num_tokens = float(sum(int(sample.mask.sum()) for sample in batch))
    lr = learning_rate(
        step,
        len(batches),
        settings.learning_rate,
        settings.scheduler_type,
        settings.warmup_steps,
        settings.min_lr_ratio,
    )
    return policy.update(batch, num_tokens, CROSS_ENTROPY, lr)


def evaluation_loss(policy: TrainablePolicy, samples: Sequence[Sample]) -> dict[str, float]:
    """Mean cross-entropy per trained token of all samples, and its perplexity."""
    logprobs = policy.learner.logprobs(samples)
    count = sum(len(values) for values in logprobs)
    loss = -sum(float(values.double().sum()) for values in logprobs) / count
    return {"eval/loss": loss, "eval/perplexity": math.exp(min(50.0, loss)), "eval/tokens": float(count)}


async def train_sft(
    policy: TrainablePolicy,
    demonstrations: Sequence[Trajectory],
    settings: SFTSettings,
    folder: Path | None = None,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
    evaluate: Callable[[], Awaitable[Evaluated]] | None = None,
    say: Callable[[str], None] = print,
    roles: Collection[str] | None = None,
) -> TrainState:
    """Train on demonstrations, or only on the replies of some roles; metrics are written below `folder`.

    With `evaluate`, which needs a folder, the policy is scored every `settings.check_every` updates and at the end. It
    ends with the weights of the best score, which are also written to `folder`/model.
    """
    samples = sft_samples(demonstrations, roles)
    if not samples:
        raise UserError("There is no scored demonstration to learn from; collect some with `practicum collect` first.")
    if evaluate is not None and folder is None:
        raise ValueError("the best weights are kept in a folder")
    trainer = SFTTrainer(policy, samples, settings, evaluate=evaluate)
    plan = RunSettings(
        trainer.num_steps,
        save_freq=-1,
        save_total_limit=1,
        test_freq=settings.check_every if evaluate is not None else -1,
        val_before_train=False,
        early_stopping_patience=None,
        keep_best=evaluate is not None,
        save_on_stop=False,
    )
    return await Run(folder, trainer, plan, say=say, on_step=on_step).train()
