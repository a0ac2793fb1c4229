"""The garbage collector while many episodes run."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from practicum.utils.garbage_collection import MIN_NEW_OBJECTS, freeze_gc


class Engine:
    """An engine of its own for each test: the collector is frozen once per engine."""


@pytest.fixture(autouse=True)
def threshold() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_collections_are_rarer_once_episodes_run() -> None:
    gc.set_threshold(700, 10, 10)
    engine = Engine()
    freeze_gc(engine)
    assert gc.get_threshold() == (MIN_NEW_OBJECTS, 10, 10)
    assert gc.get_freeze_count() > 0


@pytest.mark.parametrize("own", [0, MIN_NEW_OBJECTS + 1])
def test_a_program_that_collects_more_rarely_or_never_keeps_its_threshold(own: int) -> None:
    gc.set_threshold(own, 5, 5)
    freeze_gc(Engine())
    assert gc.get_threshold() == (own, 5, 5)
