from __future__ import annotations

import torch
from scipy import stats

from practicum.engines.local.sampling import filter_logits, filtered_logits, sample, uniforms


def test_uniforms_are_uniform_and_repeatable() -> None:
    numbers = uniforms([42], 20_000)[0]
    assert torch.equal(numbers, uniforms([7, 42], 20_000)[1])
    assert not torch.equal(numbers[:100], uniforms([43], 100)[0])
    assert stats.kstest(numbers.numpy(), "uniform").pvalue > 0.01
    neighbours = uniforms(range(2000), 1)[:, 0]
    assert stats.kstest(neighbours.numpy(), "uniform").pvalue > 0.01


def test_the_first_numbers_do_not_depend_on_how_many_are_drawn() -> None:
    assert torch.equal(uniforms([7], 5), uniforms([7], 500)[:, :5])


def test_sampling_follows_the_softmax() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(40_000, 4)
    ids, logprobs = sample(logits, uniforms([1], 40_000)[0], torch.full((40_000,), 0.8))
    expected = (logits[0] / 0.8).softmax(-1)
    observed = torch.bincount(ids, minlength=4)
    assert (
        stats.chisquare(observed.numpy(), (expected / expected.sum() * 40_000).double().numpy(), sum_check=False).pvalue
        > 0.01
    )
    assert torch.allclose(logprobs, expected.log()[ids], atol=1e-6)


def test_temperature_zero_is_greedy_beside_rows_that_sample() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]]).expand(64, 3)
    temperature = torch.cat([torch.zeros(32), torch.ones(32)])
    ids, logprobs = sample(logits, uniforms([3], 64)[0], temperature)
    assert ids[:32].unique().tolist() == [1]
    assert len(ids[32:].unique()) > 1
    assert torch.allclose(logprobs[:32], logits[0].log_softmax(-1)[1].expand(32))


def test_top_k_top_p_and_min_p_by_hand() -> None:
    scaled = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(5, 4)
    filters = torch.tensor([2, 0, 0, 0, 1]), torch.tensor([1.0, 0.7, 1.0, 1.0, 0.9]), torch.tensor([0, 0, 0, 0.3, 0.3])
    is_kept = filter_logits(scaled, *filters).isfinite()
    assert is_kept.sum(-1).tolist() == [2, 2, 4, 3, 1]
    assert is_kept[:, 0].all()
    too_small = torch.tensor([5e-324])  # 0 as a float32
    is_kept = filter_logits(scaled[:1], torch.tensor([0]), too_small, torch.tensor([0.0])).isfinite()
    assert is_kept.tolist() == [[True, False, False, False]]


def test_filtered_logprobs_are_those_of_the_distribution_sampled_from() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(2000, 4)
    temperature, top_k = torch.ones(2000), torch.full((2000,), 2)
    logits = filtered_logits(logits, temperature, top_k, torch.ones(2000), torch.zeros(2000))
    ids, logprobs = sample(logits, uniforms([9], 2000)[0], temperature)
    assert ids.max().item() == 1
    assert torch.allclose(logprobs.exp(), torch.tensor([0.625, 0.375])[ids], atol=1e-5)
