"""Which demonstrations a model can learn from at all."""

from __future__ import annotations

import numpy as np
import pytest

from practicum.errors import UserError
from practicum.training.micro_batches import Sample
from practicum.training.sft import without_too_long


def sample(length: int) -> Sample:
    numbers = np.zeros(length, dtype=np.float32)
    return Sample(tuple(range(length)), np.arange(length) > 0, numbers, numbers, numbers)


def test_samples_longer_than_the_context_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    short, full, long = sample(3), sample(8), sample(9)
    assert without_too_long([short, long, full], 8) == [short, full]
    assert capsys.readouterr().out == (
        "1 of 3 demonstrations are longer than the model's window (8 tokens) and are left out.\n"
    )
    assert without_too_long([short], 8) == [short]
    assert without_too_long([], 8) == []
    assert capsys.readouterr().out == ""


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(UserError, match="nothing is left to learn from"):
        without_too_long([sample(9)], 8)
