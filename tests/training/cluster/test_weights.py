"""Weights as messages: whole or as changes, refused where they are damaged or for another version."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import safetensors.torch
import torch

from practicum.training.cluster import weights
from practicum.training.cluster.weights import Message, WeightsRefused


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(40, 30, generator=generator).to(dtype),
        "b": torch.randn(7, generator=generator).to(dtype),
        "scale": torch.tensor(1.5, dtype=dtype),
    }


def copies(source: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in source.items()}


def size(message: Message) -> int:
    return sum(len(part) for part in message)


def flipped(message: Message, position: int, bit: int) -> Message:
    """A copy of a message with another bit at a position of its file."""
    copy = [part.copy() for part in message]
    for part in copy:
        if position < len(part):
            part[position] ^= 1 << bit
            return copy
        position -= len(part)
    raise IndexError(position)


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
    assert size(message) < size(weights.encode(after, 2)) / 2
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
        for position in range(size(message)):
            received = copies(before)
            with pytest.raises(WeightsRefused):
                weights.apply(flipped(message, position, position % 8), received, current)
            assert torch.equal(received["a"], before["a"])


def test_a_header_that_says_something_else_is_refused() -> None:
    """The checksum in the header covers names, shapes, dtypes and places of the tensors too."""
    message = weights.encode({"a": torch.zeros(4, 6)}, 1)
    for old, new in ((b"[4, 6]", b"[6, 4]"), (b'"F32"', b'"I32"'), (b"[0, 96]", b"[0, 92]"), (b'"a": {', b'"b": {')):
        header = bytes(message[0])
        assert header.count(old) == 1
        changed = np.frombuffer(header.replace(old, new), dtype=np.uint8)
        with pytest.raises(WeightsRefused, match="the header does not have the checksum"):
            weights.apply([changed, *message[1:]], {"a": torch.zeros(4, 6)}, None)


@pytest.mark.parametrize("position", [0, 20, -1, -500])
def test_a_damaged_message_is_refused_and_changes_nothing(position: int) -> None:
    message = weights.encode(tensors(0), 1)
    message = flipped(message, position % size(message), 4)
    received = copies(tensors(1))
    with pytest.raises(WeightsRefused):
        weights.apply(message, received, None)
    assert all(torch.equal(received[name], value) for name, value in tensors(1).items())


def test_parts_that_are_missing_or_in_another_order_are_refused() -> None:
    header, *parts = weights.encode(tensors(0), 1)
    received = copies(tensors(1))
    for others in ([], parts[:-1], [*parts, parts[0]], parts[::-1], [parts[0][:-4], *parts[1:]]):
        with pytest.raises(WeightsRefused, match="the message is damaged"):
            weights.apply([header, *others], received, None)
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
        weights.apply([], {}, None)


def test_a_message_is_read_where_it_lies_and_not_kept() -> None:
    """Workers get it as memory that they share with others; their weights must not be views of it."""
    sent, received = tensors(0), copies(tensors(1))
    memory = [part.copy() for part in weights.encode(sent, 1)]
    views = [part.view() for part in memory]
    for view in views:
        view.flags.writeable = False
    assert weights.apply(views, received, None) == 1
    for part in memory:
        part[:] = 0
    assert all(torch.equal(sent[name], received[name]) for name in sent)


def test_a_message_has_no_copy_of_the_weights() -> None:
    """Its parts are the learner's own memory, which is copied when the message is sent and not before."""
    sent = {"a": torch.randn(40, 30), "b": torch.randn(7).bfloat16()}
    _, *parts = weights.encode(sent, 1)
    assert [part.ctypes.data for part in parts] == [sent["a"].data_ptr(), sent["b"].data_ptr()]


def test_a_message_is_a_safetensors_file() -> None:
    """`safetensors` reads it, tensors of no elements and of no dimensions too."""
    sent = {
        "byte": torch.arange(-3, 4, dtype=torch.int8),
        "half": torch.randn(3, 5).bfloat16(),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(2.5),
        "columns": torch.randn(6, 4).t(),
        "is": torch.tensor([True, False, True]),
        "long": torch.tensor([2**40]),
    }
    message = weights.encode(sent, 1)
    data = b"".join(part.tobytes() for part in message)
    file = safetensors.torch.load(data)
    assert set(file) == set(sent)
    for name, value in file.items():
        assert value.dtype == sent[name].dtype
        assert torch.equal(value, sent[name])
    received = {name: torch.zeros_like(value).contiguous() for name, value in sent.items()}
    assert weights.apply(message, received, None) == 1
    assert all(torch.equal(received[name], value) for name, value in sent.items())


def test_checksums_are_those_of_sha256_in_the_order_of_the_tensors() -> None:
    values = [torch.randn(size) for size in (3, 4000, 0, 70, 4000)]
    assert weights.checksums(values) == [hashlib.sha256(value.numpy().tobytes()).hexdigest() for value in values]
    assert weights.checksums([]) == []
