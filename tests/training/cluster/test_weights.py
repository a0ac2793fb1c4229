"""Weights as messages: whole or as changes, refused where they are damaged or for another version."""

from __future__ import annotations

import pytest
import safetensors.torch
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
    for current in (None, 3, 6):
        received = copies(tensors(1))
        assert weights.apply(weights.encode(sent, 7), received, current) == 7
        assert all(torch.equal(sent[name], received[name]) for name in sent)


def test_changes_are_sent_where_few_elements_differ() -> None:
    before = tensors(0, torch.bfloat16)
    after = copies(before)
    after["a"][3, 5] += 1
    after["a"][39, 29] = float("nan")
    message = weights.encode(after, 2, (1, before))
    assert len(message) < len(weights.encode(after, 2)) / 2
    received = copies(before)
    assert weights.apply(message, received, 1) == 2
    assert torch.equal(received["a"].view(torch.int16), after["a"].view(torch.int16))


def test_whole_tensors_are_sent_where_most_elements_differ() -> None:
    before, after = tensors(0, torch.bfloat16), tensors(1, torch.bfloat16)
    received = copies(tensors(2, torch.bfloat16))
    assert weights.apply(weights.encode(after, 2, (1, before)), received, None) == 2
    assert torch.equal(received["a"], after["a"])


def test_changes_on_another_version_are_refused() -> None:
    before = tensors(0, torch.bfloat16)
    after = copies(before)
    after["a"][0, 0] += 1
    message = weights.encode(after, 3, (2, before))
    for current, error_text in (
        (None, "the changes are on version 2"),
        (1, "on version 2"),
        (3, "the weights here are 3"),
    ):
        received = copies(before)
        with pytest.raises(WeightsRefused, match=error_text):
            weights.apply(message, received, current)
        assert torch.equal(received["a"], before["a"])


def test_changes_on_other_weights_of_the_same_version_are_refused() -> None:
    before = tensors(0, torch.bfloat16)
    after = copies(before)
    after["a"][0, 0] += 1
    received = copies(before)
    received["a"][9, 9] += 1
    with pytest.raises(WeightsRefused, match="'a' does not have the checksum"):
        weights.apply(weights.encode(after, 3, (2, before)), received, 2)


def test_messages_in_another_order_are_refused() -> None:
    """What comes late, twice, or after a message that was lost changes nothing; the next one in order is taken."""
    versions = [tensors(0, torch.bfloat16)]
    for step in range(3):
        versions.append(copies(versions[-1]))
        versions[-1]["a"][step, 0] += 1
    messages = [weights.encode(versions[n], n + 1, (n, versions[n - 1]) if n else None) for n in range(4)]
    received = copies(tensors(1, torch.bfloat16))
    assert weights.apply(messages[0], received, None) == 1
    for late_or_early in (messages[0], messages[2], messages[3]):
        with pytest.raises(WeightsRefused, match="version"):
            weights.apply(late_or_early, received, 1)
    assert weights.apply(messages[1], received, 1) == 2
    with pytest.raises(WeightsRefused, match="the message has version 1, and the weights here are 2"):
        weights.apply(weights.encode(versions[0], 1), received, 2)
    assert weights.apply(messages[2], received, 2) == 3
    assert weights.apply(messages[3], received, 3) == 4
    assert all(torch.equal(received[name], value) for name, value in versions[3].items())


def test_no_bit_of_a_message_may_be_another() -> None:
    """Every byte of whole tensors and of changes is covered, those of the header too."""
    before = {"a": torch.randn(12, 12, generator=torch.Generator().manual_seed(0)).bfloat16()}
    after = copies(before)
    after["a"][3, 5] += 1
    for message, current in ((weights.encode(after, 2), None), (weights.encode(after, 2, (1, before)), 1)):
        for position in range(len(message)):
            damaged = bytearray(message)
            damaged[position] ^= 1 << position % 8
            received = copies(before)
            with pytest.raises(WeightsRefused):
                weights.apply(bytes(damaged), received, current)
            assert torch.equal(received["a"], before["a"])


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


def test_a_message_is_read_where_it_lies_and_not_kept() -> None:
    """Workers get it as memory that they share with others; their weights must not be views of it."""
    sent, received = tensors(0), copies(tensors(1))
    buffer = bytearray(weights.encode(sent, 1))
    assert weights.apply(memoryview(buffer).toreadonly(), received, None) == 1
    buffer[:] = bytes(len(buffer))
    assert all(torch.equal(sent[name], received[name]) for name in sent)


def test_a_message_is_a_safetensors_file() -> None:
    sent = tensors(0)
    for name, value in safetensors.torch.load(bytes(weights.encode(sent, 1))).items():
        assert torch.equal(value, sent[name])
