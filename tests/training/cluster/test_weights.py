"""Weights as messages: whole or as changes, refused where they are damaged or for another version."""

from __future__ import annotations

import pytest
import torch

from practicum.training.cluster import weights
from practicum.training.cluster.weights import WeightsRefused


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(40, 30, generator=generator).to(dtype),
        "b": torch.randn(7, generator=generator).to(dtype),
        "scale": torch.tensor(1.5, dtype=dtype),
    }


def copies(source: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in source.items()}


def test_whole_tensors_arrive_on_any_version() -> None:
    sent = tensors(0)
    for current in (None, 3):
        received = copies(tensors(1))
        assert weights.apply(weights.encode(sent, 7), received, current) == 7
        assert all(torch.equal(sent[name], received[name]) for name in sent)


def test_changes_are_sent_where_few_elements_differ() -> None:
    before = tensors(0, torch.bfloat16)
    now = copies(before)
    now["a"][3, 5] += 1
    now["a"][39, 29] = float("nan")
    message = weights.encode(now, 2, (1, before))
    assert len(message) < len(weights.encode(now, 2)) / 2
    received = copies(before)
    assert weights.apply(message, received, 1) == 2
    assert torch.equal(received["a"].view(torch.int16), now["a"].view(torch.int16))


def test_whole_tensors_are_sent_where_most_elements_differ() -> None:
    before, now = tensors(0, torch.bfloat16), tensors(1, torch.bfloat16)
    received = copies(tensors(2, torch.bfloat16))
    assert weights.apply(weights.encode(now, 2, (1, before)), received, None) == 2
    assert torch.equal(received["a"], now["a"])


def test_changes_on_another_version_are_refused() -> None:
    before = tensors(0, torch.bfloat16)
    now = copies(before)
    now["a"][0, 0] += 1
    message = weights.encode(now, 3, (2, before))
    for current in (None, 1, 3):
        received = copies(before)
        with pytest.raises(WeightsRefused, match="the changes are on version 2"):
            weights.apply(message, received, current)
        assert torch.equal(received["a"], before["a"])


def test_changes_on_other_weights_of_the_same_version_are_refused() -> None:
    before = tensors(0, torch.bfloat16)
    now = copies(before)
    now["a"][0, 0] += 1
    received = copies(before)
    received["a"][9, 9] += 1
    with pytest.raises(WeightsRefused, match="'a' does not have the checksum"):
        weights.apply(weights.encode(now, 3, (2, before)), received, 2)


@pytest.mark.parametrize("position", [0, 20, -1, -500])
def test_a_damaged_message_is_refused_and_changes_nothing(position: int) -> None:
    message = bytearray(weights.encode(tensors(0), 1))
    message[position] ^= 0x10
    received = copies(tensors(1))
    with pytest.raises(WeightsRefused):
        weights.apply(bytes(message), received, None)
    assert all(torch.equal(received[name], value) for name, value in tensors(1).items())


def test_a_message_for_another_model_is_refused() -> None:
    message = weights.encode(tensors(0), 1)
    with pytest.raises(WeightsRefused, match="another model"):
        weights.apply(message, {"a": torch.zeros(40, 30)}, None)
    other = {**tensors(1), "b": torch.zeros(8)}
    with pytest.raises(WeightsRefused, match=r"'b' is torch.float32 \[7\], here torch.float32 \[8\]"):
        weights.apply(message, other, None)
    with pytest.raises(WeightsRefused, match="torch.float32"):
        weights.apply(message, tensors(1, torch.bfloat16), None)
    with pytest.raises(WeightsRefused, match="no readable header"):
        weights.apply(b"", {}, None)
