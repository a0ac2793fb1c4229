"""Our losses and advantages against those of TRL, computed by TRL's own trainers.

A real `GRPOTrainer` (or `RLOOTrainer`) over a tiny model is built for every setting. For losses, only
where it would run the model's forward it is handed the batch's log-probs instead, so that its loss has
a gradient with respect to them; for advantages it really generates, and asks a reward function that
pays what the test says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from practicum.algorithms import advantages, kl, losses
from practicum.algorithms.losses import token_weights

trl = pytest.importorskip("trl", reason="TRL, the implementation compared with, is not installed")

TOLERANCE = 1e-9  # batches are in double precision; what is left is the order of summation
LONGEST = 12
NEVER = 1e9  # a dual clip that does not bite

MakeTrainer = Callable[..., Any]
TokenLoss = Callable[[Tensor, Tensor, Tensor, Tensor], losses.PolicyLoss]


@dataclass(frozen=True)
class Batch:
    """Trajectories [B, T] of several turns: tokens between turns and after the end are masked out."""

    logprobs: Tensor
    old: Tensor
    reference: Tensor
    advantages: Tensor
    ended: Tensor
    sampled: Tensor

    @property
    def mask(self) -> Tensor:
        return self.ended & self.sampled

    @property
    def turns(self) -> list[list[int]]:
        """Sampled tokens of each turn of each trajectory: the runs in the mask."""
        rows = ["".join("x" if on else " " for on in row) for row in self.mask.tolist()]
        return [[len(run) for run in row.split()] for row in rows]


def draw(seed: int, count: int = 16) -> Batch:
    """Ratios from about 1/20 to 20, advantages of both signs, trajectories of different lengths with gaps."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logprobs = -4.0 * torch.rand(count, LONGEST, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, LONGEST + 1, (count, 1), generator=generator)
    sampled = torch.rand(count, LONGEST, generator=generator) < 0.7
    sampled[:, 0] = True  # each trajectory says something
    batch = Batch(
        logprobs,
        logprobs - noise(count, LONGEST),
        logprobs - 0.7 * noise(count, LONGEST).clamp(-2.5, 2.5),  # within the bounds we put on k3
        noise(count),
        torch.arange(LONGEST) < lengths,
        sampled,
    )
    assert batch.advantages.min() < 0 < batch.advantages.max()
    return batch


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    """TRL tells its makers of every trainer that is built, unless the hub's client is offline."""
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(constants, "HF_HUB_OFFLINE", True)
        yield


@pytest.fixture(scope="module")
def make_trainer(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> MakeTrainer:
    """TRL's trainers over a model of a few thousand weights; `groups` of `chains` make a batch."""
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM

    folder: Path = tmp_path_factory.mktemp("trl")
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    LlamaForCausalLM(shape).save_pretrained(folder / "model")
    model = LlamaForCausalLM.from_pretrained(folder / "model").train()  # TRL reads its reference from there too

    def pays(value: list[float | None], **_: Any) -> list[float | None]:
        return value

    def make(kind: str = "GRPO", groups: int = 1, chains: int = 4, **options: Any) -> Any:
        settings = getattr(trl, f"{kind}Config")(
            output_dir=str(folder / "output"),
            use_cpu=True,
            bf16=False,
            report_to="none",
            per_device_train_batch_size=groups * chains,
            num_generations=chains,
            **{"max_completion_length": 3, "beta": 0.0, **options},
        )
        data = Dataset.from_dict({"prompt": ["one", "two"]})
        trainer = getattr(trl, f"{kind}Trainer")(
            model=model, reward_funcs=pays, args=settings, train_dataset=data, processing_class=tokenizer
        )
        trainer.current_gradient_accumulation_steps = 1  # the training loop's, which is not run here
        assert trainer.model.training
        return trainer

    return make


def trl_loss(trainer: Any, batch: Batch, **more: Tensor) -> tuple[float, Tensor]:
    """TRL's loss and its gradient with respect to the log-probs [B, T]."""
    leaf = batch.logprobs.clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (leaf, torch.zeros_like(leaf), None)
    count = len(batch.advantages)
    inputs = {
        "prompt_ids": torch.zeros(count, 1, dtype=torch.long),
        "prompt_mask": torch.ones(count, 1, dtype=torch.long),
        "completion_ids": torch.zeros(count, LONGEST, dtype=torch.long),
        "completion_mask": batch.ended.long(),
        "tool_mask": batch.sampled.long(),
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.reference,
        "num_items_in_batch": batch.mask.sum(),
    }
    loss = trainer.compute_loss(trainer.model, inputs | more)
    loss.backward()
    assert leaf.grad is not None
    return float(loss.detach()), leaf.grad


def own_loss(
    batch: Batch,
    loss_of: TokenLoss,
    aggregation: str,
    norm: float = 1.0,
    beta: float = 0.0,
    divergence: str = "low_var_kl",
) -> tuple[float, Tensor, losses.PolicyLoss]:
    """Our loss over the sampled tokens alone, its gradient laid out as theirs [B, T], and the tokens' figures."""
    leaf = batch.logprobs.clone().requires_grad_()
    mask = batch.mask
    owner = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
    tokens = loss_of(leaf[mask], batch.old[mask], batch.advantages[owner], owner)
    losses = tokens.loss
    if beta:
        losses = losses + beta * kl.penalty(leaf[mask], batch.reference[mask], divergence)
    by_turn, denominator = token_weights(batch.turns, aggregation, norm)
    pairs = [
        (length, weight)
        for lengths, weights in zip(batch.turns, by_turn, strict=True)
        for length, weight in zip(lengths, weights, strict=True)
    ]
    weights = torch.tensor([weight for length, weight in pairs for _ in range(length)], dtype=torch.float64)
    loss = (losses * weights).sum() / denominator
    torch.autograd.backward(loss)
    assert leaf.grad is not None
    return float(loss.detach()), leaf.grad, tokens


def clipped_surrogate(low: float, high: float, dual: float = NEVER) -> TokenLoss:
    return lambda logprobs, old, credit, _: losses.ppo(logprobs, old, credit, low, high, dual)


def sequence_surrogate(low: float, high: float) -> TokenLoss:
    def loss(logprobs: Tensor, old: Tensor, credit: Tensor, owner: Tensor) -> losses.PolicyLoss:
        ratios = losses.sequence_log_ratios(logprobs, old, owner)
        return losses.gspo(logprobs, ratios, credit, low, high)

    return loss


def assert_same(actual: tuple[float, Tensor], expected: tuple[float, Tensor]) -> None:
    assert actual[0] == pytest.approx(expected[0], rel=TOLERANCE, abs=TOLERANCE)
    torch.testing.assert_close(actual[1], expected[1], rtol=TOLERANCE, atol=TOLERANCE)
    assert float(expected[1].abs().max()) > 1e-4  # equal because right, not because nothing came out


# What TRL calls a loss is, with us, an aggregation.
LOSS_TYPES = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "luspo": "seq-mean-token-sum",
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss_type", list(LOSS_TYPES))
def test_clipped_losses_and_aggregations(make_trainer: MakeTrainer, loss_type: str, seed: int) -> None:
    batch = draw(seed)
    trainer = make_trainer(loss_type=loss_type, max_completion_length=20, epsilon=0.2, epsilon_high=0.2)
    loss, gradient, tokens = own_loss(batch, clipped_surrogate(0.2, 0.2), LOSS_TYPES[loss_type], norm=20.0)
    assert_same((loss, gradient), trl_loss(trainer, batch))
    share = trainer._metrics["train"]["clip_ratio/region_mean"][-1]
    assert float(tokens.clipped.double().mean()) == pytest.approx(share, abs=1e-6)  # they count in single precision
    assert 0.1 < share < 0.9


@pytest.mark.parametrize("seed", range(4))
def test_clip_higher(make_trainer: MakeTrainer, seed: int) -> None:
    batch = draw(seed)
    trainer = make_trainer(loss_type="dapo", epsilon=0.2, epsilon_high=0.28)
    expected = trl_loss(trainer, batch)
    loss, gradient, _ = own_loss(batch, clipped_surrogate(0.2, 0.28), "token-mean")
    assert_same((loss, gradient), expected)
    symmetric, _, _ = own_loss(batch, clipped_surrogate(0.2, 0.2), "token-mean")
    assert abs(symmetric - expected[0]) > 1e-4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_dual_clip_is_their_delta(make_trainer: MakeTrainer, loss_type: str, seed: int) -> None:
    batch = draw(seed)
    trainer = make_trainer(loss_type=loss_type, epsilon=0.2, epsilon_high=0.28, delta=3.0)
    loss, gradient, tokens = own_loss(batch, clipped_surrogate(0.2, 0.28, 3.0), LOSS_TYPES[loss_type])
    assert tokens.clipped_low.any()
    assert_same((loss, gradient), trl_loss(trainer, batch))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_with_a_divergence_from_a_reference(make_trainer: MakeTrainer, loss_type: str, seed: int) -> None:
    batch = draw(seed)
    trainer = make_trainer(loss_type=loss_type, max_completion_length=16, beta=0.3, use_bias_correction_kl=False)
    loss, gradient, _ = own_loss(batch, clipped_surrogate(0.2, 0.2), LOSS_TYPES[loss_type], norm=16.0, beta=0.3)
    assert_same((loss, gradient), trl_loss(trainer, batch))
    mean = kl.penalty(batch.logprobs, batch.reference, "low_var_kl")[batch.mask].mean()
    assert float(mean) == pytest.approx(trainer._metrics["train"]["kl"][-1], rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_their_corrected_divergence_on_policy_is_our_plus(make_trainer: MakeTrainer, seed: int) -> None:
    """TRL multiplies k3 by the ratio; where that is 1 the value is k3's and the gradient k2's: our `low_var_kl+`."""
    batch = draw(seed)
    batch = replace(batch, old=batch.logprobs)
    trainer = make_trainer(loss_type="dapo", beta=0.3, use_bias_correction_kl=True)
    expected = trl_loss(trainer, batch)
    surrogate = clipped_surrogate(0.2, 0.2)
    loss, gradient, _ = own_loss(batch, surrogate, "token-mean", beta=0.3, divergence="low_var_kl+")
    assert_same((loss, gradient), expected)
    _, plain, _ = own_loss(batch, surrogate, "token-mean", beta=0.3, divergence="low_var_kl")
    assert float((plain - expected[1]).abs().max()) > 1e-4  # the plain k3 has another gradient


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "luspo"])
@pytest.mark.parametrize("clip", [(3e-4, 4e-4), (0.2, 0.28)], ids=["narrow", "wide"])
def test_gspo(make_trainer: MakeTrainer, clip: tuple[float, float], loss_type: str, seed: int) -> None:
    batch = draw(seed)
    trainer = make_trainer(
        loss_type=loss_type, importance_sampling_level="sequence", epsilon=clip[0], epsilon_high=clip[1]
    )
    loss, gradient, _ = own_loss(batch, sequence_surrogate(*clip), LOSS_TYPES[loss_type])
    assert_same((loss, gradient), trl_loss(trainer, batch))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cap", [1.28, 5.0])
def test_cispo(make_trainer: MakeTrainer, cap: float, seed: int) -> None:
    """TRL's epsilon_high is the cap itself for this loss; ours is what is added to 1."""
    batch = draw(seed)
    trainer = make_trainer(loss_type="cispo", epsilon_high=cap)

    def loss_of(logprobs: Tensor, old: Tensor, credit: Tensor, _: Tensor) -> losses.PolicyLoss:
        return losses.cispo(logprobs, old, credit, cap - 1.0)

    loss, gradient, tokens = own_loss(batch, loss_of, "token-mean")
    assert tokens.clipped.any()
    assert_same((loss, gradient), trl_loss(trainer, batch))


@pytest.mark.parametrize("seed", range(4))
def test_rloo_on_policy(make_trainer: MakeTrainer, seed: int) -> None:
    """Their loss is over whole sequences' ratios; where the policy has not moved, its gradient is ours."""
    batch = draw(seed)
    batch = replace(batch, old=batch.logprobs)
    full = {"completion_mask": batch.mask.long(), "old_logps": (batch.logprobs * batch.mask).sum(1)}
    _, expected = trl_loss(make_trainer("RLOO"), batch, **full)
    _, gradient, _ = own_loss(batch, clipped_surrogate(0.2, 0.2), "seq-mean-token-sum")
    assert_same((0.0, gradient), (0.0, expected))


def their_advantages(trainer: Any, rewards: Sequence[Sequence[float | None]]) -> list[float]:
    """What TRL makes of these rewards of groups, after really generating something to reward."""
    rows = [{"prompt": f"task {task}", "value": value} for task, group in enumerate(rewards) for value in group]
    results: list[float] = trainer._generate_and_score_completions(rows)["advantages"].tolist()
    return results


def draw_rewards(seed: int, groups: int, chains: int, scale: float) -> list[list[float]]:
    generator = torch.Generator().manual_seed(seed)
    results: list[list[float]] = (scale * torch.randn(groups, chains, generator=generator)).tolist()
    return results


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chains", [2, 5])
def test_group_advantages(make_trainer: MakeTrainer, chains: int, seed: int) -> None:
    """Rewards are in the thousands: TRL adds 1e-4 to the deviation and we add 1e-6, which then cannot be seen."""
    rewards = draw_rewards(seed, 3, chains, 1000.0)
    trainer = make_trainer(groups=3, chains=chains, scale_rewards="group")
    actual = [value for group in rewards for value in advantages.grpo(group)]
    assert actual == pytest.approx(their_advantages(trainer, rewards), abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chains", [2, 5])
def test_group_advantages_without_the_deviation(make_trainer: MakeTrainer, chains: int, seed: int) -> None:
    rewards = draw_rewards(seed, 3, chains, 1.0)
    trainer = make_trainer(groups=3, chains=chains, loss_type="dr_grpo", scale_rewards="none")
    actual = [value for group in rewards for value in advantages.grpo(group, normalise=False)]
    assert actual == pytest.approx(their_advantages(trainer, rewards), abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chains", [2, 5])
def test_leave_one_out_advantages(make_trainer: MakeTrainer, chains: int, seed: int) -> None:
    rewards = draw_rewards(seed, 3, chains, 1.0)
    trainer = make_trainer("RLOO", groups=3, chains=chains, normalize_advantages=False)
    actual = [value for group in rewards for value in advantages.rloo(group)]
    assert actual == pytest.approx(their_advantages(trainer, rewards), abs=1e-5)


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_what_could_not_be_scored_is_in_no_baseline(make_trainer: MakeTrainer, kind: str) -> None:
    rewards: list[list[float | None]] = [[3000.0, None, 1000.0, -500.0], [0.0, 2000.0, None, None]]
    trainer = make_trainer(kind, groups=2, chains=4)
    result = their_advantages(trainer, rewards)
    estimate = advantages.grpo if kind == "GRPO" else advantages.rloo
    scored = [[reward for reward in group if reward is not None] for group in rewards]
    actual = [value for group in scored for value in estimate(group)]
    assert [result[location] for location in (0, 2, 3, 4, 5)] == pytest.approx(actual, rel=1e-6, abs=1e-5)
    assert [result[location] for location in (1, 6, 7)] == [0.0, 0.0, 0.0]


def test_the_bounds_we_add_are_far_out() -> None:
    """TRL has none of them: log-ratios are held within ±20 and k3 at 10, where a run is lost anyway."""
    far = torch.tensor([-19.0, 19.0], dtype=torch.float64)
    assert losses.ppo(far, torch.zeros_like(far), torch.ones_like(far)).ratio.tolist() == pytest.approx(
        [math.exp(-19), math.exp(19)]
    )
    assert kl.penalty(torch.tensor([-2.6]), torch.zeros(1), "low_var_kl").item() == pytest.approx(
        math.exp(2.6) - 3.6, rel=1e-6
    )
