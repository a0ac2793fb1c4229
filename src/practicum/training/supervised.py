"""What SFT and DPO share as trainers: planned updates over fixed data, which is named by a fingerprint."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from abc import abstractmethod
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from practicum.data.run_folder import MODEL
from practicum.errors import UserError
from practicum.training.learner import OptimizerSettings, utilisation
from practicum.training.micro_batches import Sample
from practicum.training.settings import RunSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.training.trainer import StepResult, Trainer


class UpdateSettings:
    """What follows from the settings of an update, by the names that SFT and DPO have in common."""

    batch_size: int
    gradient_accumulation_steps: int
    learning_rate: float
    weight_decay: float
    max_grad_norm: float

    @property
    def update_size(self) -> int:
        """Sequences (SFT) or pairs (DPO) of one update."""
        return self.batch_size * self.gradient_accumulation_steps

    @property
    def optimizer(self) -> OptimizerSettings:
        return OptimizerSettings(self.learning_rate, self.weight_decay, grad_clip=self.max_grad_norm)


class SupervisedTrainer(Trainer):
    """Planned updates over fixed data: update N depends on N, the data and the weights alone."""

    def __init__(self, policy: TrainablePolicy, num_steps: int, fingerprint: str) -> None:
        """`fingerprint` names the data; a checkpoint of a run over other data is refused."""
        self.policy, self.num_steps, self.fingerprint = policy, num_steps, fingerprint
        self.folder: Path | None = None
        """The run's folder, for messages."""

    @abstractmethod
    def update(self, step: int) -> dict[str, float]:
        """Do one update of the policy; returns its metrics."""

    async def step(self, step: int) -> StepResult:
        started, flops = time.perf_counter(), self.policy.learner.model_flops
        metrics = self.update(step)
        seconds = time.perf_counter() - started
        return StepResult(metrics | {"timing/update": seconds} | utilisation([self.policy.learner], flops, seconds))

    def state(self) -> dict[str, Any]:
        return {"data": self.fingerprint}

    def restore(self, state: dict[str, Any]) -> None:
        if state.get("data") not in (None, self.fingerprint):  # checkpoints of earlier versions do not have it
            raise UserError(
                f"The training data is not what the run in '{self.folder}' began with; put that back, or choose "
                "another output_dir."
            )
        self.policy.set_version(int(state["step"]))
        self.policy.learner.version = int(state["step"])


def supervised_run_settings(steps: int, save_steps: int, eval_steps: int, save_total_limit: int | None) -> RunSettings:
    """A run that ends with the weights of the smallest evaluation loss.

    With `eval_steps` of 0 or less it is evaluated at the end only; with `save_steps` of 0 or less only the best
    weights are saved on the way.
    """
    return RunSettings(
        steps,
        save_freq=save_steps,
        save_total_limit=save_total_limit,
        test_freq=eval_steps if eval_steps > 0 else steps,
        val_before_train=False,
        best_metric="eval/loss",
        early_stopping_patience=None,
        keep_best=True,
    )


def place_adapter(folder: Path) -> None:
    """Give the adapter in a run's `model/` a second name in the run's folder itself, where HALO's commands and PEFT's
    `from_pretrained(output_dir)` look for it. The files are shared, not copied, where the file system can."""
    for file in sorted((folder / MODEL).iterdir()):
        if file.name == "README.md" or not file.is_file():
            continue
        scratch = folder / f".writing-{file.name}"
        scratch.unlink(missing_ok=True)
        try:
            os.link(file, scratch)
        except OSError:
            shutil.copy2(file, scratch)
        scratch.replace(folder / file.name)


def fingerprint_samples(samples: Iterable[Sample]) -> str:
    """A hash of what is learnt from samples: their ids, and which of them are trained."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(len(sample.ids).to_bytes(8))
        digest.update(array("q", sample.ids))
        digest.update(sample.mask.tobytes())
    return digest.hexdigest()[:16]
