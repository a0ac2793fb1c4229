"""Imitation and preference against TRL: losses and gradients of the whole model on the same batch.

A real `SFTTrainer`, `DPOTrainer` or `KTOTrainer` is built over the tiny model's weights and asked for its own loss of a
padded batch; ours goes through the packed batch and the one learner. What is compared is the loss and every parameter's
gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from practicum.models import loader
from practicum.training.dpo import DPOSettings, Pair, dpo_update, pair_loss, sum_logprobs
from practicum.training.learner import OptimizerSettings
from practicum.training.micro_batches import Sample
from practicum.training.sft import sft_update
from practicum.training.trainable_policy import TrainablePolicy
from tests.training.settings import dpo_settings, sft_settings

from .test_dpo import make_pairs

trl = pytest.importorskip("trl", reason="TRL, the implementation compared with, is not installed")

TOLERANCE = 1e-5
BETA = 0.4

Gradient = dict[str, Tensor]


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    """TRL tells its makers of every trainer that is built, unless the hub's client is offline."""
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(constants, "HF_HUB_OFFLINE", True)
        yield


def make_trainer(kind: str, folder: Path, tokenizer: Any, **options: Any) -> Any:
    """TRL's trainer over the tiny model of seed 0, with the one of seed 1 as its reference."""
    from datasets import Dataset

    settings = getattr(trl, f"{kind}Config")(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", gradient_checkpointing=False, **options
    )
    rows: dict[str, Any] = {"prompt": ["one", "two"], "chosen": ["three", "four"], "rejected": ["five", "six"]}
    if kind == "SFT":
        rows = {"prompt": rows["prompt"], "completion": rows["chosen"]}
    if kind == "KTO":
        rows = {"prompt": rows["prompt"], "completion": rows["chosen"], "label": [True, False]}
    more = {} if kind == "SFT" else {"ref_model": loader.load_tiny(1).model}
    trainer = getattr(trl, f"{kind}Trainer")(
        model=loader.load_tiny(0).model,
        args=settings,
        train_dataset=Dataset.from_dict(rows),
        processing_class=tokenizer,
        **more,
    )
    trainer.model.train()
    return trainer


def padded(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """The batch as TRL wants it: rows filled up on the right, and which tokens are judged."""
    width = max(len(sample.ids) for sample in samples)
    ids, attention, completion = (torch.zeros(len(samples), width, dtype=torch.long) for _ in range(3))
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
        attention[row, : len(sample.ids)] = 1
        completion[row, : len(sample.ids)] = torch.from_numpy(sample.mask)
    return {"input_ids": ids, "attention_mask": attention, "completion_mask": completion}


def trl_loss(trainer: Any, inputs: dict[str, Tensor]) -> tuple[float, Gradient]:
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, dict(inputs))
    loss.backward()
    return float(loss.detach()), _gradient(trainer.model)


def _gradient(model: torch.nn.Module) -> Gradient:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def policy_of(seed: int = 0) -> TrainablePolicy:
    """Whose updates leave a gradient and change nothing."""
    policy = TrainablePolicy(loader.load_tiny(seed))
    policy.reset_optimizer(OptimizerSettings(grad_clip=0.0))
    policy.learner.optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
    return policy


def our_preference(pairs: Sequence[Pair], settings: DPOSettings) -> tuple[float, Gradient]:
    policy, samples = policy_of(), [p.chosen for p in pairs] + [p.rejected for p in pairs]
    reference = sum_logprobs(TrainablePolicy(loader.load_tiny(1)).decoder, policy, samples)
    result = dpo_update(policy, pairs, reference, settings, 0.0)
    return result["dpo/loss"], _gradient(policy.loaded.model)


def assert_same(actual: tuple[float, Gradient], expected: tuple[float, Gradient]) -> None:
    assert actual[0] == pytest.approx(expected[0], abs=TOLERANCE, rel=TOLERANCE)
    assert actual[1].keys() == expected[1].keys()
    size = math.sqrt(sum(float(value.square().sum()) for value in expected[1].values()))
    error = math.sqrt(sum(float((actual[1][name] - value).square().sum()) for name, value in expected[1].items()))
    assert size > 1e-3  # equal because right, not because nothing came out
    assert error / size < TOLERANCE


@pytest.mark.parametrize("seed", range(2))
def test_sft_equals_trl(seed: int, tokenizer: Any, tmp_path: Path) -> None:
    """Replies of different lengths with a gap in one: every judged token weighs the same in the batch."""
    samples = [pair.chosen for pair in make_pairs(5, seed)]
    holed = samples[0].mask.copy()
    holed[11] = False  # an observation between two replies
    samples[0] = Sample(samples[0].ids, holed, *(samples[0].weights,) * 3)
    policy = policy_of()
    batch = [Sample(s.ids, s.mask, s.mask.astype(np.float32), s.advantages, s.sampling_logprobs) for s in samples]
    result = sft_update(policy, batch, [list(range(5))], 0, sft_settings(batch_size=5, warmup_steps=0))
    inputs = padded(samples)
    completion = inputs.pop("completion_mask")
    inputs["labels"] = inputs["input_ids"].masked_fill(completion == 0, -100)
    trainer = make_trainer("SFT", tmp_path, tokenizer)
    assert_same((result["actor/loss"], _gradient(policy.loaded.model)), trl_loss(trainer, inputs))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("ours", "their_name"), [("dpo", "sigmoid"), ("ipo", "ipo")])
def test_dpo_equals_trl(ours: str, their_name: str, seed: int, tokenizer: Any, tmp_path: Path) -> None:
    pairs = make_pairs(4, seed)
    trainer = make_trainer("DPO", tmp_path, tokenizer, beta=BETA, loss_type=[their_name])
    expected = trl_loss(trainer, padded([p.chosen for p in pairs] + [p.rejected for p in pairs]))
    settings = dpo_settings(loss=ours, beta=BETA)
    result = our_preference(pairs, settings)
    assert_same(result, expected)
    metrics, beta = trainer._metrics["train"], settings.beta
    samples = [p.chosen for p in pairs] + [p.rejected for p in pairs]
    policy = policy_of()
    reference = sum_logprobs(TrainablePolicy(loader.load_tiny(1)).decoder, policy, samples)
    won, lost = pair_loss(policy, pairs, reference, settings)[0].log_ratios
    assert float(beta * won.mean()) == pytest.approx(metrics["rewards/chosen"][-1], abs=1e-4)
    assert float(beta * (won - lost).mean()) == pytest.approx(metrics["rewards/margins"][-1], abs=1e-4)


@pytest.mark.parametrize("smoothing", [0.1, 0.3])
def test_smoothed_labels(smoothing: float, tokenizer: Any, tmp_path: Path) -> None:
    """TRL keeps the smoothed loss in AOT alone, where a batch of one pair has nothing to sort."""
    pairs = make_pairs(1, 7)
    trainer = make_trainer("DPO", tmp_path, tokenizer, beta=BETA, loss_type=["aot"], label_smoothing=smoothing)
    expected = trl_loss(trainer, padded([pairs[0].chosen, pairs[0].rejected]))
    assert_same(our_preference(pairs, dpo_settings(beta=BETA, label_smoothing=smoothing)), expected)
    plain, _ = our_preference(pairs, dpo_settings(beta=BETA))
    assert abs(plain - expected[0]) > 1e-3


@pytest.mark.parametrize("seed", range(2))
def test_kto_equals_trl(seed: int, tokenizer: Any, tmp_path: Path) -> None:
    """TRL's z comes from replies that belong to other prompts; handed the other side's, its loss is ours for pairs."""
    pairs = make_pairs(4, seed)
    trainer = make_trainer("KTO", tmp_path, tokenizer, beta=BETA, loss_type="kto")
    sides = [[p.chosen for p in pairs], [p.rejected for p in pairs]]
    loss, gradient = 0.0, dict[str, Tensor]()
    for side, target in enumerate((True, False)):
        other = {f"KL_{name}": value for name, value in padded(sides[1 - side]).items()}
        label = torch.tensor([target] * len(pairs))
        value, slope = trl_loss(trainer, {**padded(sides[side]), **other, "label": label})
        loss += value
        gradient = {name: gradient.get(name, 0) + part for name, part in slope.items()}
    assert_same(our_preference(pairs, dpo_settings(loss="kto", beta=BETA)), (loss, gradient))


def test_at_the_start_both_losses_are_ln_2(tokenizer: Any, tmp_path: Path) -> None:
    pairs = make_pairs(4, 3)
    samples = [p.chosen for p in pairs] + [p.rejected for p in pairs]
    trainer = make_trainer("DPO", tmp_path, tokenizer, beta=BETA)
    trainer.ref_model.load_state_dict(trainer.model.state_dict())
    expected, their_gradient = trl_loss(trainer, padded(samples))
    policy = policy_of()
    result = dpo_update(policy, pairs, sum_logprobs(policy.decoder, policy, samples), dpo_settings(beta=BETA), 0.0)
    assert expected == pytest.approx(math.log(2), abs=1e-6)
    assert_same((result["dpo/loss"], _gradient(policy.loaded.model)), (expected, their_gradient))
